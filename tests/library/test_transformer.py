"""The Transformer against torch.nn's, against its equations written out, and one way through it against another."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import transformer_models
from course_lib.attention import BACKENDS, KVCache, attention_backend, merge_heads, record_attention, split_heads
from course_lib.functional import Dropout, causal_mask, padding_mask
from course_lib.generate import beam_search, generate, greedy
from course_lib.positional import ALiBi, LearnedPositions, PositionScheme, RelativeBias, RoPE, Sinusoidal, in_attention
from course_lib.text import EOS, PAD, SOS, length_mask
from course_lib.transformer import (
    RESIDUALS,
    DecoderLayer,
    EncoderLayer,
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
    init_weights,
)
from course_lib.transformer_models import POOLS, TokenEmbedding, TransformerClassifier, TransformerLM, Translator
from course_lib.translation import scheduled_sampling, translate
from course_lib.utils import number_of_parameters
from course_lib.utils.validate import check_real

EXACT = {"rtol": 1e-10, "atol": 1e-10}
B, T, S, H, K, N, V = 2, 5, 7, 3, 4, 2, 11
D, HIDDEN = H * K, 20

every_backend = pytest.mark.parametrize("backend", BACKENDS)
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
    schemes = [
        PositionScheme(),
        Sinusoidal(D, 20),
        LearnedPositions(D, 20, std=1.0),
        RelativeBias(H, 2),
        RoPE(K),
        ALiBi(H),
    ]
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
EACH = (torch.rand(B, 1, T, T, generator=torch.Generator().manual_seed(0)) < 0.5) | torch.eye(T, dtype=torch.bool)
EACH_SOURCE = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(1)) < 0.7
EACH_SOURCE &= padding_mask(REAL_SOURCE)  # the encoder's output at padding is 0 here and a vector in torch


def over_heads(mask):
    """Torch's form of a mask for each sentence, query and key: (B H, T, S), True = hidden."""
    return ~mask.expand(-1, H, -1, -1).flatten(0, 1)


SELF_MASKS = {  # ours, torch's
    "nothing": ({}, {}),
    "padding": ({"mask": padding_mask(REAL)}, {"key_padding_mask": ~REAL}),
    "causal": ({"causal": True}, {"mask": ~causal_mask(T)}),
    "padding and causal": (
        {"mask": padding_mask(REAL), "causal": True},
        {"key_padding_mask": ~REAL, "mask": ~causal_mask(T)},
    ),
    "each query": ({"mask": EACH}, {"mask": over_heads(EACH)}),
}
MEMORY_MASKS = {
    "nothing": ({}, {}),
    "padding": ({"memory_mask": padding_mask(REAL_SOURCE)}, {"memory_key_padding_mask": ~REAL_SOURCE}),
    "each query": ({"memory_mask": EACH_SOURCE}, {"memory_mask": over_heads(EACH_SOURCE)}),
}
every_mask = pytest.mark.parametrize("masks", SELF_MASKS)
both_orders = pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
both_activations = pytest.mark.parametrize("activation", [F.relu, F.gelu], ids=["relu", "gelu"])


def of_the_target(torchs):
    return {f"tgt_{name}": mask for name, mask in torchs.items()}


@every_backend
@both_activations
@both_orders
@every_mask
def test_the_encoder_layer_is_torchs(masks, residual, activation, backend):
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
    with attention_backend(backend):
        out = layer(x, **ours)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(gradients(out, layer, x), gradients(wanted, reference, x), **EXACT)
    assert number_of_parameters(layer) == number_of_parameters(reference)
    assert layer.state_dict().keys() == reference.state_dict().keys()


@every_backend
@both_activations
@both_orders
@pytest.mark.parametrize("memory_masks", MEMORY_MASKS)
@pytest.mark.parametrize("masks", ["nothing", "padding and causal", "each query"])
def test_the_decoder_layer_is_torchs(masks, memory_masks, residual, activation, backend):
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
    with attention_backend(backend):
        out = layer(x, memory, **{"causal": False} | ours, **ours_memory)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(gradients(out, layer, x, memory), gradients(wanted, reference, x, memory), **EXACT)
    assert number_of_parameters(layer) == number_of_parameters(reference)
    assert layer.state_dict().keys() == reference.state_dict().keys()


@every_backend
@both_orders
@every_mask
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_encoder_is_torchs_and_zero_at_padding(norm, masks, residual, backend):
    """Fails if the last norm is left out, or padding keeps numbers (which a mean over positions would count)."""
    layer = nn.TransformerEncoderLayer(D, H, HIDDEN, 0.0, batch_first=True, norm_first=residual == "pre-ln")
    reference = filled(nn.TransformerEncoder(layer, N, nn.LayerNorm(D) if norm else None, enable_nested_tensor=False))
    stack = TransformerEncoder(encoder(residual=residual).layers, nn.LayerNorm(D) if norm else None).double()
    stack.load_state_dict(reference.state_dict())
    x, (ours, torchs) = draw(B, T, D), SELF_MASKS[masks]
    wanted = reference(x, **{"src_key_padding_mask" if "padding" in name else name: m for name, m in torchs.items()})
    if "padding" in masks:
        wanted = torch.where(REAL[..., None], wanted, 0.0)
    with attention_backend(backend):
        out = stack(x, **ours)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(gradients(out, stack, x), gradients(wanted, reference, x), **EXACT)


@every_backend
@both_orders
@pytest.mark.parametrize("masks", ["nothing", "causal", "padding and causal", "each query"])
@pytest.mark.parametrize("memory_masks", ["padding", "each query", "as the source"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_whole_transformer_is_torchs(memory_masks, masks, residual, backend):
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
    with attention_backend(backend):
        out = model(source, target, padding_mask(REAL_SOURCE), **{"causal": False} | ours, **ours_memory)
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

    def double(dropout, x):
        asked.append((x.shape[-1], dropout.p, dropout.training))
        return 2 * x

    monkeypatch.setattr(Dropout, "forward", double)
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
            assert made.dropout.p == made.hidden_dropout.p == 0.3
            assert all(m.dropout.p == wanted for m in made.modules() if hasattr(m, "out_proj"))
            assert layer(D, H, HIDDEN, dropout=0.3, hidden_dropout=given).hidden_dropout.p == (
                0.3 if given is None else given
            )
        assert {type(m) for m in made.modules() if isinstance(m, nn.Dropout)} == {Dropout}


@every_backend
def test_training_is_repeatable_and_evaluation_drops_nothing(backend):
    """Fails if a seed does not fix the draws, two calls draw the same, the paths differ, or evaluation drops."""
    model, plain = filled(encoder(dropout=0.3)), filled(encoder())
    x, mask = draw(B, T, D), padding_mask(REAL)

    def run(seed, backend=backend):
        torch.manual_seed(seed)
        with attention_backend(backend):
            return model(x, mask)

    torch.testing.assert_close(run(1), run(1), **EXACT)
    assert not torch.allclose(run(1), run(2))
    torch.testing.assert_close(run(1, "sdpa"), run(1, "math"), **EXACT)
    model.eval()
    torch.testing.assert_close(model(x, mask), plain(x, mask), **EXACT)


def test_second_derivatives_in_training_are_those_of_the_equation():
    """Fails if a layer with dropout refuses `create_graph=True`, or loses what depends on the weights."""
    layer, x, found = filled(EncoderLayer(D, H, HIDDEN, dropout=0.3)), draw(B, T, D), []
    for backend in BACKENDS:
        torch.manual_seed(1)
        with attention_backend(backend):
            (first,) = torch.autograd.grad(layer(x, padding_mask(REAL)).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), list(layer.parameters())[:-1]))
    torch.testing.assert_close(*found, **EXACT)


# --- options --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_without_biases_a_layer_is_torchs_too(kind):
    """Fails if a bias stays anywhere, norms included."""
    reference = filled(kind(D, H, HIDDEN, 0.0, batch_first=True, bias=False, dtype=torch.float64))
    layer = (EncoderLayer if kind is nn.TransformerEncoderLayer else DecoderLayer)(
        D, H, HIDDEN, 0.0, bias=False
    ).double()
    layer.load_state_dict(reference.state_dict())
    assert not any("bias" in name for name, _ in layer.named_parameters())
    inputs = [draw(B, T, D), draw(B, S, D)][: 1 if kind is nn.TransformerEncoderLayer else 2]
    wanted = reference(*inputs, **({} if len(inputs) == 1 else {"tgt_mask": ~causal_mask(T)}))
    torch.testing.assert_close(layer(*inputs), wanted, **EXACT)


@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_a_llama_block_by_its_formulas(kind):
    """Fails if the gate and the other half change places, or another norm is taken than the one asked for."""
    options = {"residual": "pre-ln", "bias": False, "norm": nn.RMSNorm, "gated": True, "activation": "silu"}
    layer = filled(kind(D, H, HIDDEN, 0.0, position=RoPE(K), **options))
    x, memory = draw(B, T, D), draw(B, S, D)
    norms = [layer.norm1, layer.norm2] if kind is EncoderLayer else [layer.norm1, layer.norm2, layer.norm3]
    assert {type(norm) for norm in norms} == {nn.RMSNorm}
    wanted = x + layer.self_attn(norms[0](x), causal=True)
    if kind is DecoderLayer:
        assert layer.multihead_attn.position is None
        wanted = wanted + layer.multihead_attn(norms[1](wanted), memory)
    y = norms[-1](wanted)
    gate = y @ layer.gate.weight.T
    wanted = wanted + (gate * gate.sigmoid() * (y @ layer.linear1.weight.T)) @ layer.linear2.weight.T
    out = layer(x, causal=True) if kind is EncoderLayer else layer(x, memory)
    torch.testing.assert_close(out, wanted, **EXACT)


@pytest.mark.parametrize("residual", ["post-ln", "rezero"])
@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_layers_are_made_on_a_device_and_of_a_type(kind, residual):
    """Fails if a parameter is elsewhere or of another type, or the argument changes the draws."""
    layer = kind(D, H, HIDDEN, residual=residual, device="meta", dtype=torch.bfloat16)
    assert {(x.device.type, x.dtype) for x in layer.parameters()} == {("meta", torch.bfloat16)}
    torch.manual_seed(0)
    wanted = [x.double() for x in kind(D, H, HIDDEN, residual=residual).parameters()]
    torch.manual_seed(0)
    found = list(kind(D, H, HIDDEN, residual=residual, dtype=torch.float64).parameters())
    assert all(map(torch.equal, found, wanted))


def test_activations_by_name_are_torchs_functions():
    """Fails if "relu" makes a layer that cannot be called, or a name stands for another function."""
    x = draw(B, T, D)
    for name, function in (("relu", F.relu), ("gelu", F.gelu), ("silu", F.silu)):
        for kind, inputs in ((EncoderLayer, (x,)), (DecoderLayer, (x, x))):
            named, given = (filled(kind(D, H, HIDDEN, 0.0, activation=a)) for a in (name, function))
            torch.testing.assert_close(named(*inputs), given(*inputs), **EXACT)


# --- exported and compiled --------------------------------------------------------


def readers(rows=4, T=T):
    """Models with padding, and what they read."""
    torch.manual_seed(0)
    ids, real = tokens(rows, T), length_mask([1 + 3 * b % T for b in range(rows)], T)
    return {
        "classifier": (TransformerClassifier(V, encoder(), 3, position=Sinusoidal(D, 20)), (ids, real)),
        "classifier, cls": (TransformerClassifier(V, encoder(), 3, position=RoPE(K), pool="cls"), (ids, real)),
        "language model": (TransformerLM(V, encoder(), position=ALiBi(H)), (ids, real, causal_mask(T).triu(-2))),
        "translator": (
            Translator(V, V, Transformer(encoder(), decoder()), position=RelativeBias(H, 2)),
            (ids, real, ids),
        ),
    }


@pytest.mark.parametrize("name", readers())
def test_models_with_padding_can_be_exported_for_any_batch_and_length(name):
    """Fails if Python looks at the values of a mask, or the number of rows or tokens is written into the graph."""
    model, args = readers()[name]
    rows, size = (torch.export.Dim(axis, min=2, max=19) for axis in ("rows", "size"))
    shapes = tuple({0: rows if len(arg) == 4 else size, 1: size} for arg in args)
    exported = torch.export.export(model.eval(), args, dynamic_shapes=shapes).module()
    _, more = readers(6, 9)[name]
    torch.testing.assert_close(exported(*more), model(*more))


@pytest.mark.parametrize("name", readers())
def test_models_with_padding_compile_as_one_graph(name):
    """Fails if something in `forward` breaks the graph, in evaluation or, with dropout, in training."""
    torch._dynamo.reset()
    model, args = readers()[name]
    compiled = torch.compile(model.eval(), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*args), model(*args))
    for part in model.train().modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.1
    compiled(*args).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# --- without gradients ----------------------------------------------------------


def masks_of_all_kinds(rows, T):
    """Lengths of 0 to T, holes in some rows, padding in front in others."""
    generator = torch.Generator().manual_seed(rows)
    mask = length_mask(torch.randint(1, T + 1, (rows,), generator=generator).tolist(), T)
    mask[::3] &= torch.rand(mask[::3].shape, generator=generator) < 0.6
    mask[rows // 2] = False
    mask[-1] = torch.arange(T) >= T // 2
    return mask


@every_backend
@pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 8, 19])
def test_the_path_without_gradients_is_the_other_one(rows, causal, residual, backend):
    """Fails if a row is cut too short or put in another's place, a hole is filled, or an empty row breaks it."""
    x = draw(rows, S, D)
    for position in (None, RoPE(K), ALiBi(H)):
        stack = filled(encoder(residual=residual, position=position))
        for real in (masks_of_all_kinds(rows, S), torch.zeros(rows, S, dtype=torch.bool)):
            with attention_backend(backend):
                wanted = stack(x, padding_mask(real), causal)
                assert (wanted[~real] == 0).all()
                for context in (torch.no_grad, torch.inference_mode):
                    with context():
                        got = stack(x, padding_mask(real), causal)
                    torch.testing.assert_close(got, wanted.detach(), **EXACT)


def test_the_path_without_gradients_reads_no_column_that_is_padding(monkeypatch):
    """Fails if it computes what it is there to skip, or does so where a hook looks: it would see parts of the batch."""
    stack, read, forward = encoder(1), [], EncoderLayer.forward
    monkeypatch.setattr(
        EncoderLayer, "forward", lambda self, x, *rest: read.append(x.shape[:2]) or forward(self, x, *rest)
    )
    x, mask = torch.rand(18, 30, D), padding_mask(length_mask(torch.arange(1, 19).flip(0), 30))
    with torch.no_grad():
        out = stack(x, mask)
    assert read == [(8, 8), (8, 16), (2, 18)]
    with torch.no_grad(), record_attention(stack) as maps:
        torch.testing.assert_close(stack(x, mask), out)
    assert read[3:] == [(18, 30)]
    assert maps["layers.0.self_attn"].shape == (18, H, 30, 30)


@pytest.mark.parametrize("rows", [1, 3, T], ids=lambda rows: f"B = {rows}")
def test_a_mask_of_queries_and_keys_is_never_read_as_padding(rows):
    """Fails if a (T, T) mask zeroes positions or leaks the future where B = T, with or without gradients."""
    stack, x = filled(encoder()), draw(rows, T, D)
    wanted = torch.cat([stack(x[b : b + 1], causal=True) for b in range(rows)])
    assert (wanted != 0).all()
    decoding, memory = filled(decoder()), draw(rows, S, D)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(stack(x, causal_mask(T)), wanted, **EXACT)
            torch.testing.assert_close(decoding(x, memory, causal_mask(T), causal=False), decoding(x, memory), **EXACT)


@pytest.mark.parametrize(
    "shape", [(T,), (1, T), (T, T), (1, 1, T), (1, 1, 1, T), (B, 1, 1, T), (B, 1, T, T), (B, H, T, T)]
)
def test_padding_is_what_no_query_may_attend_to(shape):
    """Fails if a mask with fewer axes, or of each query or head, is read as another one, or its padding is not zero."""
    stack, x = filled(encoder()), draw(B, T, D)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., 2:4] = False
    wanted = stack(x, padding_mask(torch.tensor([[True, True, False, False, True]] * B)))
    assert (wanted[:, 2:4] == 0).all()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(stack(x, mask), wanted, **EXACT)


def test_bad_masks_are_named_on_both_paths():
    """Fails if the path without gradients cuts a wrong mask to size, or reads numbers as a mask."""
    stack, x = encoder(), torch.rand(B, T, D)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for real in (length_mask([3, 2], S), length_mask([3, 5, 1], T)):
                with pytest.raises(ValueError, match=r"mask of shape .* does not broadcast to \(2, 3, 5, 5\)"):
                    stack(x, padding_mask(real))
            with pytest.raises(ValueError, match=r"mask of shape \(2, 5\) does not broadcast to \(2, 3, 5, 5\)"):
                stack(x, length_mask([3, 5], T))
            with pytest.raises(ValueError, match=r"mask must be torch.bool, got torch.float32"):
                stack(x, padding_mask(length_mask([3, 5], T)).float())


@both_orders
def test_both_paths_have_one_type_under_autocast(residual):
    """Fails if bfloat16 evaluation returns another type than training, or strays from float32 by more than bfloat16.

    bfloat16 has 8 bits: a rounding errs by 2^-9 of the value; entries are about 1 and a few dozen roundings add up.
    """
    stack = filled(encoder(residual=residual)).float()
    x, mask = draw(9, S, D).float().detach(), padding_mask(masks_of_all_kinds(9, S))
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
def test_recorded_maps_are_the_weights_that_were_used(residual, position):
    """Fails if a map norms what the layer does not, forgets a mask or position, or stands under another's name.

    A hook notes what each attention was given in `forward`; weights times values, joined, must give its output.
    """
    position = position if in_attention(position) else None
    model = filled(
        Transformer(encoder(residual=residual, position=position), decoder(residual=residual, position=position))
    )
    source, target, used = draw(B, S, D), draw(B, T, D), {}

    def note(module, args, out):
        used[module] = (args[1] if len(args) > 1 else args[0], out)

    for name, module in model.named_modules():
        if name.endswith(("self_attn", "multihead_attn")):
            module.register_forward_hook(note)
    with record_attention(model) as maps:
        model(source, target, padding_mask(REAL_SOURCE), padding_mask(REAL))
    assert list(maps) == [
        *(f"encoder.layers.{n}.self_attn" for n in range(N)),
        *(f"decoder.layers.{n}.{kind}_attn" for n in range(N) for kind in ("self", "multihead")),
    ]
    for name, map_ in maps.items():
        module = model.get_submodule(name)
        key, out = used[module]
        v = split_heads(key @ module.in_proj_weight[2 * D :].T + module.in_proj_bias[2 * D :], H)
        torch.testing.assert_close(module.out_proj(merge_heads(map_ @ v)), out, **EXACT)
        torch.testing.assert_close(map_.sum(-1), torch.ones(map_.shape[:3], dtype=torch.float64), **EXACT)


def test_a_scheme_has_one_name_in_a_model_and_all_layers_share_it():
    """Fails if a learned scheme is saved once a layer, or a copy of the model has several of it."""
    for position in (RelativeBias(H, 2), RoPE(K)):
        model = copy.deepcopy(TransformerLM(V, encoder(), position=position))
        names = [name for name in model.state_dict() if "position" in name]
        assert names == (["embedding.position.weight"] if isinstance(position, RelativeBias) else [])
        assert all(layer.self_attn.position is model.embedding.position for layer in model.encoder.layers)
    layer = EncoderLayer(D, H, HIDDEN, position=RelativeBias(H, 2))
    assert "self_attn.position.weight" in layer.state_dict(), "a layer on its own owns its scheme"


# --- tokens ---------------------------------------------------------------------


def test_token_embeddings_have_variance_one_and_an_offset():
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
    for position in (Sinusoidal(D, 20), LearnedPositions(D, 20)):
        embedding, ids = TokenEmbedding(V, D, position), tokens(B, T)
        assert torch.equal(embedding(ids[:, 2:], offset=2), embedding(ids)[:, 2:])


def test_a_norm_of_the_embedding_comes_last():
    """Fails if the norm stands before the positions: rows would then not have mean 0 and variance 1."""
    vectors = TokenEmbedding(V, D, LearnedPositions(D, 20, std=1.0), norm=True).double()(tokens(B, T))
    torch.testing.assert_close(vectors.mean(-1), torch.zeros(B, T, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(vectors.var(-1, correction=0), torch.ones(B, T, dtype=torch.float64), rtol=0, atol=1e-3)


# --- the classifier -------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("pool", POOLS)
@every_position
def test_the_classifier_by_hand_a_sentence_at_a_time(pool, norm, position, backend):
    """Fails if padding is pooled, the learned vector is not first, or tokens do not move up by one behind it."""
    model = filled(TransformerClassifier(V, encoder(), 3, position=position, pool=pool, norm=norm))
    position, ids, mask = position.double(), tokens(3, S), length_mask([4, 7, 1], S)
    rows = []
    for b, length in enumerate([4, 7, 1]):
        x = model.embedding.embedding.weight[ids[b : b + 1, :length]] * math.sqrt(D)
        x = model.embedding.norm(position.add(x, 1 if pool == "cls" else 0))
        if pool == "cls":
            x = torch.cat([model.cls[None, None], x], 1)
        states = model.encoder(x)[0]  # (length, D)
        pooled = {"mean": states.mean(0), "max": states.amax(0), "cls": states[0]}[pool]
        rows.append(model.output.weight @ pooled + model.output.bias)
    wanted = torch.stack(rows)
    with attention_backend(backend):
        torch.testing.assert_close(model(ids, mask), wanted, **EXACT)
        with torch.no_grad():
            torch.testing.assert_close(model(ids, mask), wanted, **EXACT)
        torch.testing.assert_close(model(ids[1:2]), wanted[1:2], **EXACT)


def test_the_classifiers_maps():
    """Fails if padding gets weight, a row does not add up to 1, or the learned vector has no row and column."""
    for pool in POOLS:
        model, extra = filled(TransformerClassifier(V, encoder(), pool=pool)), pool == "cls"
        with torch.no_grad(), record_attention(model) as maps:
            model(tokens(2, S), length_mask([4, 7], S))
        assert [map_.shape for map_ in maps.values()] == [(2, H, S + extra, S + extra)] * N
        for map_ in maps.values():
            assert (map_[0, :, :, 4 + extra :] == 0).all()
            assert (map_[0, :, :, : 4 + extra] > 0).all()
            torch.testing.assert_close(map_.sum(-1), torch.ones(map_.shape[:3], dtype=torch.float64), **EXACT)


# --- the language model ---------------------------------------------------------


@every_position
@pytest.mark.parametrize("tied", [True, False])
def test_the_language_model_step_by_step(tied, position):
    """Fails if `step` gives another row, starts positions anew, or the output layer is not the one asked for."""
    model, ids = filled(TransformerLM(V, encoder(), position=position, tied=tied)).eval(), tokens(2, S)
    logits = model(ids)
    hidden = model.encoder(model.embedding(ids), causal=True)
    table = model.embedding.embedding.weight if tied else model.output.weight
    torch.testing.assert_close(logits, hidden @ table.T, **EXACT)
    assert (model.vocab_size, model.max_len) == (V, position.max_len)
    with torch.no_grad():
        for cuts in ((3, 4, S), range(1, S + 1), (S,)):
            state, done = model.start(2), 0
            for end in cuts:
                found, state = model.step(ids[:, done:end], state)
                torch.testing.assert_close(found, logits[:, end - 1].detach(), **EXACT)
                done = end
    with record_attention(model) as maps:
        model(ids)
    assert all((map_.triu(1) == 0).all() for map_ in maps.values()), "a weight on a later token"
    assert [map_.shape for map_ in maps.values()] == [(2, H, S, S)] * N


def test_a_language_model_writes_and_has_its_own_head_if_untied():
    """Fails if the protocol of `generate` is not met, a seed does not fix the text, or the head is left out."""
    model = filled(TransformerLM(V, encoder(), position=RoPE(K))).eval()
    drawn = [generate(model, [[5, 6]], 70, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert str(drawn[0]) == str(drawn[1]) != str(drawn[2])
    untied = TransformerLM(V, encoder(), tied=False)
    assert number_of_parameters(untied) == number_of_parameters(model) + V * D


def test_a_table_that_is_too_short_is_named():
    """Fails if reading past a table's end goes on with a wrong position."""
    model = TransformerLM(V, encoder(), position=LearnedPositions(D, 4)).eval()
    assert model.max_len == 4
    with torch.no_grad():
        _, state = model.step(tokens(1, 4), model.start(1))
        with pytest.raises(ValueError, match=r"positions 4 to 4 are wanted, the table has 0 to 3"):
            model.step(tokens(1, 1), state)


@pytest.mark.parametrize("pool", POOLS)
def test_models_take_a_mask_on_top_of_the_padding(pool):
    """Fails if `mask` replaces the padding, is read as (B, T), or does not reach the attention."""
    model, ids, real = (
        filled(TransformerClassifier(V, encoder(), 3, pool=pool)),
        tokens(T, T),
        length_mask([T, 2, 3, 4, 5], T),
    )
    size = T + (pool == "cls")
    near = causal_mask(size) & causal_mask(size).triu(-2)
    out = model(ids, real, near)
    assert not torch.allclose(out, model(ids, real))
    for b in range(T):
        length = real[b].sum() + (pool == "cls")
        alone = model(ids[b : b + 1, : real[b].sum()], mask=near[:length, :length])
        torch.testing.assert_close(out[b : b + 1], alone, **EXACT)
    lm = filled(TransformerLM(V, encoder()))
    everything = torch.ones(T, T, dtype=torch.bool)
    torch.testing.assert_close(lm(ids, real, everything), lm(ids, real), **EXACT)
    changed = ids.clone()
    changed[:, 0] = 4 + (changed[:, 0] - 3) % (V - 4)
    window = causal_mask(T).triu(-1)  # a token sees itself and the one before: with N = 2 layers the two before
    assert torch.equal(lm(ids, mask=window)[:, 3:], lm(changed, mask=window)[:, 3:])
    assert not torch.allclose(lm(ids)[:, 3:], lm(changed)[:, 3:])


@pytest.mark.parametrize("kind", [*POOLS, "language model", "translator"])
@every_position
def test_padding_in_front_is_refused_where_it_changes_the_answer(kind, position):
    """Fails if padding moves a text to other positions without a word, or is refused where it changes nothing."""
    if kind == "translator":
        model, more = Translator(V, V, Transformer(encoder(), decoder()), position=position), (tokens(1, T, seed=1),)
    elif kind == "language model":
        model, more = TransformerLM(V, encoder(), position=position), ()
    else:
        model, more = TransformerClassifier(V, encoder(), position=position, pool=kind), ()
    filled(model)
    ids, real = tokens(1, T), torch.tensor([[False, False, True, True, True]])
    if isinstance(position, Sinusoidal | LearnedPositions) or (kind == "cls" and in_attention(position)):
        with pytest.raises(ValueError, match="real has padding before a real token; the real tokens must come first"):
            model(ids, real, *more)
    else:
        out, wanted = model(ids, real, *more), model(ids[:, 2:], None, *more)
        torch.testing.assert_close(out[:, 2:] if kind == "language model" else out, wanted, **EXACT)


# --- the translator -------------------------------------------------------------


def translator(position=None, seed=0):
    model = Translator(V, V + 2, Transformer(encoder(), decoder()), position=position)
    return filled(model, seed).eval()


SOURCE, SOURCE_MASK = tokens(3, S), length_mask([4, 7, 2], S)


@every_position
@pytest.mark.parametrize("real", [SOURCE_MASK, None], ids=["padded", "whole"])
def test_teacher_forcing_equals_decoding_step_by_step(position, real):
    """Fails if a later target word is seen, a position restarts at each step, or the source's mask is lost."""
    model, target = translator(position), tokens(3, T, seed=1)
    wanted = model(SOURCE, real, target).detach()
    assert wanted.shape == (3, T, V + 2)
    assert (model.vocab_size, model.max_len) == (V + 2, position.max_len)
    with torch.no_grad():
        for cuts in (range(1, T + 1), (2, T)):
            state, done = model.start(SOURCE, real), 0
            for end in cuts:
                logits, state = model.step(target[:, done:end], state)
                torch.testing.assert_close(logits, wanted[:, end - 1], **EXACT)
                done = end
    hidden = model.transformer(model.source_embedding(SOURCE), model.target_embedding(target), padding_mask(real))
    torch.testing.assert_close(hidden @ model.target_embedding.embedding.weight.T, wanted, **EXACT)


@every_position
def test_decoding_a_batch_equals_each_sentence_alone(position):
    """Fails if padding or a neighbour changes a translation, or a beam mixes up the states of its hypotheses."""
    model = translator(position, seed=3)
    together = greedy(model, SOURCE, SOURCE_MASK, max_new_tokens=8)
    beams = beam_search(model, SOURCE, SOURCE_MASK, beam_size=3, max_new_tokens=8)
    one = beam_search(model, SOURCE, SOURCE_MASK, beam_size=1, max_new_tokens=8)
    for b, length in enumerate([4, 7, 2]):
        for found, alone in (
            (together[b], greedy(model, SOURCE[b : b + 1, :length], max_new_tokens=8)[0]),
            (beams[b], beam_search(model, SOURCE[b : b + 1, :length], beam_size=3, max_new_tokens=8)[0]),
            (one[b], together[b]),
        ):
            assert found.tokens == alone.tokens
            assert found.score == pytest.approx(alone.score, abs=1e-9)
        assert beams[b].score >= together[b].score - 1e-9 or beams[b].finished != together[b].finished
    sources = [SOURCE[b, :length].tolist() for b, length in enumerate([4, 7, 2])]
    assert [h.tokens for h in translate(model.train(), sources, batch_size=2, max_new_tokens=8)] == [
        h.tokens for h in together
    ]
    assert model.training


@every_position
def test_the_score_of_a_translation_is_that_of_teacher_forcing(position):
    """Fails if decoding conditions a word on anything but the words before it: the same sentence, read in one pass."""
    model = translator(position, seed=3)
    for b, found in enumerate(greedy(model, SOURCE, SOURCE_MASK, max_new_tokens=8)):
        written = found.tokens + ([EOS] if found.finished else [])
        target_in = torch.tensor([[SOS, *written[:-1]]])
        log_probs = model(SOURCE[b : b + 1], SOURCE_MASK[b : b + 1], target_in).log_softmax(-1)[0]
        assert found.score == pytest.approx(sum(log_probs[t, y].item() for t, y in enumerate(written)), abs=1e-9)
        log_probs[:, [PAD, SOS]] = -torch.inf
        assert log_probs.argmax(-1).tolist() == written


def test_the_translators_maps():
    """Fails if a map sees later words or padding, or the embedding's positions do not reach it."""
    model, target = translator(ALiBi(H)), tokens(3, T, seed=1)
    with torch.no_grad(), record_attention(model) as maps:
        model(SOURCE, SOURCE_MASK, target)
    for n in range(N):
        own = maps[f"transformer.decoder.layers.{n}.self_attn"]
        cross = maps[f"transformer.decoder.layers.{n}.multihead_attn"]
        assert (own.shape, cross.shape) == ((3, H, T, T), (3, H, T, S))
        assert (own.triu(1) == 0).all()
        for map_ in (cross, maps[f"transformer.encoder.layers.{n}.self_attn"]):
            assert (map_.masked_select(~padding_mask(SOURCE_MASK)) == 0).all()
            torch.testing.assert_close(map_.sum(-1), torch.ones(map_.shape[:3], dtype=torch.float64), **EXACT)


# --- caches ---------------------------------------------------------------------


@pytest.mark.parametrize("room", [None, 1], ids=["room", "full"])
@every_backend
def test_gradients_through_caches_are_those_of_teacher_forcing(backend, room, monkeypatch):
    """Fails if a step overwrites keys that the backward pass of an earlier one needs, or cuts gradients off."""
    if room is not None:
        caches = transformer_models.empty_caches
        monkeypatch.setattr(transformer_models, "empty_caches", lambda stack, rows: caches(stack, rows, room))
    model, source, real, target = translator().train(), tokens(2, S), length_mask([S, 2], S), tokens(2, T, seed=1)
    weighting = draw(2, T, V + 2, seed=2)
    with attention_backend(backend):
        wanted = model(source, real, target)
        found = scheduled_sampling(model, source, real, target, teacher_forcing=1.0)
        torch.testing.assert_close(found, wanted, **EXACT)
        ours, theirs = (
            torch.autograd.grad((logits * weighting).sum(), list(model.parameters())) for logits in (found, wanted)
        )
        torch.testing.assert_close(ours, theirs, **EXACT)
        scheduled_sampling(model, source, real, target, 0.5).sum().backward()


def test_a_cache_that_was_filled_with_gradients_goes_on_without():
    """Fails if memory that a backward pass needs is written into after the prompt, or what it holds is lost."""
    model, ids = filled(TransformerLM(V, encoder())), tokens(2, T)
    state = model.start(2)
    logits, state = model.step(ids[:, :2], state)
    with torch.no_grad():
        for t in range(2, T):
            torch.testing.assert_close(model.step(ids[:, t : t + 1], state)[0], model(ids)[:, t], **EXACT)
    logits.sum().backward()


def test_padding_does_not_enter_a_cache():
    """Fails if padding is kept, where later tokens would attend to it."""
    model, ids = TransformerLM(V, encoder()), tokens(2, T)
    caches = model.start(2)["kv_caches"]
    with pytest.raises(ValueError, match=r"kv_caches with real: later tokens would attend to padding"):
        model(ids, length_mask([T, 2], T), kv_caches=caches)
    assert caches[0].length == 0


@every_backend
@every_residual
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_with_caches_a_stack_goes_on_where_it_stood(causal, residual, backend):
    """Fails if a layer gets another's cache, the last norm is skipped, or a new token sees no old one.

    Causal: the whole text at once is the reference. Not causal: each layer by hand, its keys those of its own input.
    """
    stack, x = filled(encoder(residual=residual)), draw(B, T, D)
    kv_caches, done, outs = [KVCache(B, H, T, K, torch.float64) for _ in range(N)], 0, []
    others = [KVCache(B, H, T, K, torch.float64) for _ in range(N)]
    for end in (2, 3, T):
        with attention_backend(backend):
            outs.append(stack(x[:, done:end], causal=causal, kv_caches=kv_caches))
        wanted = x[:, done:end]
        for layer, cache in zip(stack.layers, others, strict=True):
            attend = lambda y, a=layer.self_attn, c=cache: a(y, causal=causal, cache=c)  # noqa: E731
            wanted = layer.residual(layer.residual(wanted, attend, layer.norm1), layer.feed_forward, layer.norm2)
        wanted = wanted if stack.norm is None else stack.norm(wanted)
        torch.testing.assert_close(outs[-1], wanted, **EXACT)
        done = end
    if causal:
        torch.testing.assert_close(torch.cat(outs, 1), stack(x, causal=True), **EXACT)


@torch.no_grad()
def test_caches_go_with_a_mask_and_one_a_layer():
    """Fails if padding among the earlier tokens is attended to, or a layer stays without a cache."""
    stack, x, real = filled(encoder()), draw(B, T, D), torch.tensor([[True] * T, [False, False, True, True, True]])
    kv_caches = [KVCache(B, H, T, K, torch.float64) for _ in range(N)]
    wanted, outs = stack(x, padding_mask(real), causal=True), []
    for t in range(T):
        outs.append(stack(x[:, t : t + 1], padding_mask(real[:, : t + 1]), causal=True, kv_caches=kv_caches))
    torch.testing.assert_close(torch.cat(outs, 1), wanted, **EXACT)
    for wrong in ([], kv_caches[:1], [*kv_caches, kv_caches[0]]):
        with pytest.raises(ValueError, match=r"zip\(\) argument 2 is"):
            stack(x, kv_caches=wrong)


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
    assert init_weights(model, std) is model
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
    assert init_weights(nn.Linear(50, 60, bias=False)).weight.std().item() == pytest.approx(0.02, rel=5 / 6000**0.5)


def test_check_real_lets_good_masks_pass_and_names_bad_ones():
    """Fails if a row without a real token, 0 / 1 numbers or another shape passes, or a good mask does not."""
    ids = torch.zeros(3, 4).long()
    for real in (None, torch.ones(3, 4).bool(), length_mask([1, 4, 2], 4), ~length_mask([3, 1, 0], 4)):
        assert check_real("real", real, ids) is None
    for real, message in (
        (torch.ones(3, 4), r"real must be torch.bool, got torch.float32"),
        (torch.ones(4).bool(), r"real must be a tensor \(3, 4\), got one of shape \(4,\)"),
        (torch.ones(1, 4).bool(), r"real must be a tensor \(3, 4\), got one of shape \(1, 4\)"),
        (length_mask([4, 1, 0], 4), r"real has a row without a real token: row 2"),
    ):
        with pytest.raises(ValueError, match=message):
            check_real("real", real, ids)


# --- bad input ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: EncoderLayer(12, 5, 20),
            r"d_model must be a multiple of num_heads, got d_model=12 and num_heads=5",
        ),
        (lambda: EncoderLayer(12, 3, 0), r"dim_feedforward must be a whole number of at least 1, got 0"),
        (lambda: EncoderLayer(12, 3, 20, dropout=1.0), r"dropout must be from 0 to below 1, got 1.0"),
        (lambda: EncoderLayer(12, 3, 20, attention_dropout=-1), r"dropout must be from 0 to below 1, got -1"),
        (
            lambda: EncoderLayer(12, 3, 20, residual="pre"),
            r"residual must be one of 'post-ln', 'pre-ln', 'rezero', got 'pre'",
        ),
        (lambda: DecoderLayer(12, 5, 20), r"d_model must be a multiple of num_heads"),
        (
            lambda: EncoderLayer(12, 3, 20, activation="swish"),
            r"activation must be one of 'relu', 'gelu', 'silu', got 'swish'",
        ),
        (lambda: DecoderLayer(12, 3, 20, activation=None), r"activation must be one of 'relu', .*, got None"),
        (lambda: DecoderLayer(12, 3, 0), r"dim_feedforward must be a whole number of at least 1, got 0"),
        (lambda: DecoderLayer(12, 3, 20, residual="none"), r"residual must be one of .*, got 'none'"),
        (lambda: EncoderLayer(12, 3, 20, activation=nn.GELU), r"must be a function or a name: GELU\(\), not GELU"),
        (lambda: DecoderLayer(12, 3, 20, norm="rmsnorm"), r"norm must be a class, such as nn.RMSNorm, got 'rmsnorm'"),
        (
            lambda: EncoderLayer(12, 3, 20, residual="pre-ln")(torch.zeros(2, 5, 12).numpy()),
            r"x must be a floating torch tensor, got ndarray",
        ),
        (
            lambda: DecoderLayer(12, 3, 20, residual="pre-ln")(torch.zeros(2, 5, 12).long(), torch.zeros(2, 7, 12)),
            r"x must be a floating torch tensor, got torch.int64",
        ),
        (lambda: EncoderLayer(12, 3, 20)(torch.zeros(2, 5, 11)), r"x must have the width 12, got shape \(2, 5, 11\)"),
        (
            lambda: torch.no_grad()(encoder())(torch.zeros(2, 5, 12).numpy(), padding_mask(torch.ones(2, 5).bool())),
            r"x must be a floating torch tensor, got ndarray",
        ),
        (lambda: TransformerEncoder([]), r"wanted at least one layer, each its own object, got 0 of 0"),
        (lambda: TransformerEncoder([EncoderLayer(12, 3, 20)] * 3), r"each its own object, got 3 of 1|got 1 of 3"),
        (lambda: TransformerEncoder([EncoderLayer(12, 3, 20), EncoderLayer(6, 3, 20)]), r"have the widths \[12, 6\]"),
        (lambda: TransformerDecoder([]), r"wanted at least one layer"),
        (
            lambda: Transformer(encoder(), TransformerDecoder([DecoderLayer(6, 3, 20)])),
            r"the encoder's width is 12, the decoder's 6",
        ),
        (lambda: TokenEmbedding(0, 12), r"vocab_size must be a whole number of at least 1, got 0"),
        (lambda: TokenEmbedding(9, 0), r"d_model must be a whole number of at least 1, got 0"),
        (lambda: TokenEmbedding(9, 12, dropout=1), r"dropout must be from 0 to below 1, got 1"),
        (lambda: TokenEmbedding(9, 12, scale=0), r"scale must be a finite number above 0, got 0"),
        (lambda: TokenEmbedding(9, 12)(torch.zeros(2, 3)), r"ids must be torch.int64, got torch.float32"),
        (
            lambda: TokenEmbedding(9, 12)(torch.zeros(3).long()),
            r"ids must be a tensor \(B, T\), got one of shape \(3,\)",
        ),
        (lambda: TokenEmbedding(9, 12)(torch.tensor([[1, 9]])), r"ids must be from 0 to 8, got 1 to 9"),
        (lambda: TokenEmbedding(9, 12)([[1, 2]]), r"ids must be a torch tensor \(B, T\), got builtins.list"),
        (
            lambda: TransformerClassifier(9, encoder(), pool="last"),
            r"pool must be one of 'mean', 'max', 'cls', got 'last'",
        ),
        (
            lambda: TransformerClassifier(9, encoder(), num_classes=0),
            r"num_classes must be a whole number of at least 1, got 0",
        ),
        (
            lambda: TransformerClassifier(9, encoder())(tokens(2, 3, vocab_size=9), torch.ones(2, 3)),
            r"real must be torch.bool, got torch.float32",
        ),
        (
            lambda: TransformerClassifier(9, encoder())(tokens(2, 3, vocab_size=9), length_mask([2, 1], 4)),
            r"real must be a tensor \(2, 3\), got one of shape \(2, 4\)",
        ),
        (
            lambda: TransformerClassifier(9, encoder())(tokens(3, 3, vocab_size=9), length_mask([2, 0, 1], 3)),
            r"real has a row without a real token: row 1",
        ),
        (lambda: TransformerLM(9, encoder())(tokens(2, 3, vocab_size=9), torch.ones(2, 3)), r"real must be torch.bool"),
        (
            lambda: TransformerLM(9, encoder())(tokens(3, 3, vocab_size=9), mask=torch.ones(3, 3)),
            r"mask must be torch.bool, got torch.float32",
        ),
        (
            lambda: TransformerClassifier(9, encoder(), position=LearnedPositions(D, 3), pool="cls")(
                tokens(2, 3, vocab_size=9)
            ),
            r"positions 1 to 3 are wanted, the table has 0 to 2",
        ),
        (
            lambda: (model := translator()).step(tokens(3), model.start(SOURCE)),
            r"ids must be a tensor \(B, T\), got one of shape \(3,\)",
        ),
        (lambda: translator()(SOURCE.double(), None, tokens(3, T)), r"ids must be torch.int64, got torch.float64"),
        (
            lambda: translator()(SOURCE, SOURCE_MASK[:, 1:], tokens(3, T)),
            r"source_real must be a tensor \(3, 7\), got one of shape \(3, 6\)",
        ),
        (
            lambda: translator().start(SOURCE, SOURCE_MASK & False),
            r"source_real has a row without a real token: row 0",
        ),
        (
            lambda: DecoderLayer(12, 3, 20)(torch.zeros(2, 5, 12), torch.zeros(3, 7, 12)),
            r"wanted q .*, got q \(2, 3, 5, 4\), k \(3, 3, 7, 4\)",
        ),
        (
            lambda: encoder(position=ALiBi(2))(torch.zeros(2, 5, 12)),
            r"bias of shape \(2, 5, 5\) does not broadcast to \(2, 3, 5, 5\)",
        ),
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
    wanted, decoded = model(SOURCE, SOURCE_MASK, target), greedy(model, SOURCE, SOURCE_MASK, max_new_tokens=8)
    model.cuda()
    source, mask = SOURCE.cuda(), SOURCE_MASK.cuda()
    torch.testing.assert_close(model(source, mask, target.cuda()).cpu(), wanted, **EXACT)
    assert [h.tokens for h in greedy(model, source, mask, max_new_tokens=8)] == [h.tokens for h in decoded]
    stack, x = filled(encoder(position=position.cpu())), draw(9, S, D)
    mask = padding_mask(masks_of_all_kinds(9, S))
    wanted = stack(x, mask).detach()
    stack.cuda()
    with torch.no_grad():
        torch.testing.assert_close(stack(x.cuda(), mask.cuda()).cpu(), wanted, **EXACT)


@pytest.mark.parametrize("shape", [(0, 3, D), (2, 0, D)])
def test_an_empty_batch_stays_empty(shape):
    """Fails if dropout in training, or the skipping of padding, divides by the size of nothing."""
    x, layer = torch.zeros(shape), EncoderLayer(D, H, HIDDEN, dropout=0.1)
    assert layer(x).shape == shape
    mask = torch.ones(shape[0], 1, 1, shape[1], dtype=torch.bool)
    with torch.no_grad():
        assert TransformerEncoder([layer.eval()])(x, mask).shape == shape
