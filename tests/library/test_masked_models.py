"""Models that take a mask or read padding: exported, compiled as one graph, and with a (T, T) mask where B = T."""

import pytest
import torch
from torch import nn

from course_lib.attention import MultiHeadAttention
from course_lib.bert import (
    BERT,
    BERTConfig,
    BERTForPreTraining,
    BERTForSequenceClassification,
    BERTForTokenClassification,
)
from course_lib.functional import causal_mask
from course_lib.gpt import GPT, GPTConfig
from course_lib.positional import ALiBi, PositionScheme, RelativeBias, RoPE, Sinusoidal
from course_lib.text import length_mask
from course_lib.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerDecoder, TransformerEncoder
from course_lib.transformer_models import TransformerClassifier, TransformerLM

B, T, H, K, V, HIDDEN, LONGEST = 3, 7, 3, 4, 11, 20, 20
D = H * K


def seeded(model):
    """The same weights in each test, none of them zero, in float64."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def tokens(rows, T=T):
    return torch.randint(V, (rows, T), generator=torch.Generator().manual_seed(rows))


def bert(residual="post-ln"):
    return BERT(BERTConfig(V, LONGEST, D, 2, H, HIDDEN, dropout=0.0, residual=residual))


def encoder(**options):
    return TransformerEncoder([EncoderLayer(D, H, HIDDEN, 0.0, **options) for _ in range(2)])


def decoder():
    return TransformerDecoder([DecoderLayer(D, H, HIDDEN, 0.0) for _ in range(2)])


# --- exported and compiled --------------------------------------------------------

BERTS = {
    "BERT": bert,
    "BERT, pre-ln": lambda: bert("pre-ln"),
    "pre-training": lambda: BERTForPreTraining(bert()),
    "texts, cls": lambda: BERTForSequenceClassification(bert(), 3),
    "texts, mean": lambda: BERTForSequenceClassification(bert(), 3, pool="mean"),
    "tokens": lambda: BERTForTokenClassification(bert(), 3),
}
POSITIONS = {
    "learned": lambda: None,
    "sinusoidal": lambda: Sinusoidal(D, LONGEST),
    "rope": lambda: RoPE(K),
    "alibi": lambda: ALiBi(H),
    "relative": lambda: RelativeBias(H, 2),
    "none": PositionScheme,
}
MODELS = BERTS | {
    f"GPT, {name}": lambda position=position: GPT(GPTConfig(V, LONGEST, D, 2, H, HIDDEN, dropout=0.0), position())
    for name, position in POSITIONS.items()
}


def arguments(name, rows, T):
    """What a model reads: tokens, and for BERT which are real, the segments and a mask of T x T."""
    ids = tokens(rows, T)
    if name.startswith("GPT"):
        return (ids,)
    real = length_mask([1 + 3 * b % T for b in range(rows)], T)
    return (ids, real, ids % 2) if name == "pre-training" else (ids, real, ids % 2, causal_mask(T).triu(-2))


@pytest.mark.parametrize("name", MODELS)
def test_models_can_be_exported_for_any_batch_and_length(name):
    """Fails if Python looks at the values of ids or a mask, or a number of rows or tokens is written into the graph."""
    model, args, more = seeded(MODELS[name]()), arguments(name, 4, 5), arguments(name, 6, 9)
    rows, size = (torch.export.Dim(axis, min=2, max=19) for axis in ("rows", "size"))
    shapes = tuple({0: rows if len(arg) == 4 else size, 1: size} for arg in args)
    exported = torch.export.export(model, args, dynamic_shapes=shapes).module()
    torch.testing.assert_close(exported(*more), model(*more))


@pytest.mark.parametrize("name", MODELS)
def test_models_compile_as_one_graph(name):
    """Fails if something in `forward` breaks the graph, in evaluation or, with dropout, in training."""
    torch._dynamo.reset()
    model, args = seeded(MODELS[name]()), arguments(name, 4, 5)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*args), model(*args))
    for part in model.train().modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.1
    out = compiled(*args)
    sum(part.sum() for part in (out if isinstance(out, tuple) else (out,))).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


# --- a mask of queries and keys -----------------------------------------------------

BAND = causal_mask(T) & causal_mask(T).triu(-2)  # (T, T)
IDS = tokens(T)  # (B, T) with B = T
X, MEMORY = torch.randn(2, T, T, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MASKED = {
    "attention": (lambda: MultiHeadAttention(D, H), lambda model, b: model(X[b], mask=BAND)),
    "encoder layer": (lambda: EncoderLayer(D, H, HIDDEN), lambda model, b: model(X[b], BAND)),
    "decoder layer": (
        lambda: DecoderLayer(D, H, HIDDEN),
        lambda model, b: model(X[b], MEMORY[b], BAND, BAND.mT, causal=False),
    ),
    "encoder": (encoder, lambda model, b: model(X[b], BAND)),
    "decoder": (decoder, lambda model, b: model(X[b], MEMORY[b], BAND, BAND.mT, causal=False)),
    "transformer": (
        lambda: Transformer(encoder(), decoder()),
        lambda model, b: model(MEMORY[b], X[b], BAND, BAND, BAND.mT, causal=False),
    ),
    "language model": (lambda: TransformerLM(V, encoder()), lambda model, b: model(IDS[b], mask=BAND)),
    "classifier": (lambda: TransformerClassifier(V, encoder()), lambda model, b: model(IDS[b], mask=BAND)),
} | {f"BERT: {name}": (make, lambda model, b: model(IDS[b], mask=BAND)) for name, make in BERTS.items()}


@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "no gradients"])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_of_queries_and_keys_where_b_is_t(name, grad):
    """Fails if a (T, T) mask is read as (B, T), as padding or one row for each text, where B = T."""
    make, call = MASKED[name]
    model = seeded(make())
    with torch.set_grad_enabled(grad):
        together, alone = call(model, slice(None)), [call(model, slice(b, b + 1)) for b in range(T)]
    if name == "BERT: pre-training":  # the logits of tokens and those of the pair
        together, alone = (
            torch.cat([x.flatten(1) for x in together], 1),
            [torch.cat([x.flatten(1) for x in one], 1) for one in alone],
        )
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-10, atol=1e-10)
