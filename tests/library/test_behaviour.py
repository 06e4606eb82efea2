"""What every model of the course must do, whatever it computes: one line in `CASES` puts a model to all of it.

A model may read a sequence (with a mask: a whole text, or the source of a translation) and write one (each output
may depend on what was written up to it, never on what follows).

    a future token changes nothing before it           models that write
    padding changes nothing, in value and gradient     models that read
    without positions the order changes nothing        models that read; with positions it changes something
    every parameter gets a gradient                    all
    a saved and loaded model gives the same bits       all
"""

import io
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import nn

from course_lib.attention import attention_backend
from course_lib.bag_of_words import AveragedEmbeddings, BagOfWords
from course_lib.bert import (
    BERT,
    BERTConfig,
    BERTForPreTraining,
    BERTForSequenceClassification,
    BERTForTokenClassification,
)
from course_lib.functional import padding_mask
from course_lib.gpt import GPT, GPTConfig
from course_lib.lstm_gru import GRU, LSTM
from course_lib.ngram import WindowLM
from course_lib.positional import ALiBi, LearnedPositions, PositionScheme, RelativeBias, RoPE, Sinusoidal
from course_lib.recurrent_models import LanguageModel, SequenceClassifier
from course_lib.rnn import RNN
from course_lib.seq2seq import AttentionDecoder, Decoder, Encoder, Seq2Seq
from course_lib.text import length_mask
from course_lib.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerDecoder, TransformerEncoder
from course_lib.transformer_models import TransformerClassifier, TransformerLM, Translator, with_position

EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64, where only the order of sums differs
B, T, S, H, K, V = 3, 5, 7, 3, 4, 11
D, HIDDEN = H * K, 20
LENGTHS = [4, 7, 2]
MASK = length_mask(LENGTHS, S)


# --- the models -----------------------------------------------------------------

POSITIONS = {
    "no position": PositionScheme,
    "sinusoidal": lambda: Sinusoidal(D, 20),
    "learned": lambda: LearnedPositions(D, 20),
    "relative": lambda: RelativeBias(H, 2),
    "rope": lambda: RoPE(K),
    "alibi": lambda: ALiBi(H),
}


def stack(kind=TransformerEncoder, layer=EncoderLayer, **options):
    return kind([layer(D, H, HIDDEN, dropout=0.0, **options) for _ in range(2)], nn.LayerNorm(D))


def transformer(**options):
    return Transformer(stack(**options), stack(TransformerDecoder, DecoderLayer, **options))


class WithPositions(nn.Module):
    """A stack on vectors, with positions: as a reader (x, real), or as a writer, causal (x)."""

    def __init__(self, encoder, position, causal=False):
        super().__init__()
        self.encoder, self.position, self.causal = with_position(encoder, position), position, causal

    def forward(self, x, real=None):
        return self.encoder(self.position.add(x), padding_mask(real), self.causal)


class BothWithPositions(nn.Module):
    """A `Transformer` on vectors, with positions."""

    def __init__(self, transformer, position):
        super().__init__()
        self.transformer, self.position = with_position(transformer, position), position

    def forward(self, source, real, target):
        source, target = self.position.add(source), self.position.add(target)
        return self.transformer(source, target, padding_mask(real))


class BothTasks(nn.Module):
    """`BERTForPreTraining`, with the pair's logits beside those of every token."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, real=None):
        token_logits, pair_logits = self.model(ids, real)
        return torch.cat([token_logits, pair_logits[:, None].expand(-1, ids.shape[1], -1)], -1)


def bert(pooler=False, residual="post-ln"):
    return BERT(BERTConfig(V, 20, D, 2, H, HIDDEN, dropout=0.0, residual=residual), pooler)


def gpt(position=None):
    return GPT(GPTConfig(V, 20, D, 2, H, HIDDEN, dropout=0.0), position)


class Case(NamedTuple):
    """A model: `make` builds it, `reads` and `writes` say of what its sequences are made (None: it has none)."""

    make: Callable
    reads: str | None = None  # "ids" or "vectors"
    writes: str | None = None
    blind: bool = False  # whether the order of what it reads makes no difference
    backends: tuple = (None,)  # ways to compute attention, if it attends


BOTH = ("sdpa", "math")
CASES = {
    "bag of words": Case(lambda: BagOfWords(V), reads="ids", blind=True),
    "averaged embeddings": Case(lambda: AveragedEmbeddings(V, D, 3), reads="ids", blind=True),
    "window": Case(lambda: WindowLM(V, 3, 4, 6), writes="ids"),
    "rnn": Case(lambda: LanguageModel(V, RNN(4, 6)), writes="ids"),
    "lstm": Case(lambda: LanguageModel(V, LSTM(4, 6, num_layers=2)), writes="ids"),
    "gru": Case(lambda: LanguageModel(V, GRU(4, 6)), writes="ids"),
    "rnn, classifier": Case(lambda: SequenceClassifier(V, RNN(4, 6), 3), reads="ids"),
    "lstm, both ways": Case(lambda: SequenceClassifier(V, LSTM(4, 6, bidirectional=True), 3, "max"), reads="ids"),
    "gru, both ways": Case(lambda: SequenceClassifier(V, GRU(4, 6, bidirectional=True), 3, "mean"), reads="ids"),
    "seq2seq": Case(
        lambda: Seq2Seq(Encoder(V, LSTM(3, 4)), Decoder(V, LSTM(5, 6), context_size=4)), reads="ids", writes="ids"
    ),
    "seq2seq, attention": Case(
        lambda: Seq2Seq(
            Encoder(V, GRU(3, 4, bidirectional=True)),
            AttentionDecoder(V, GRU(5 + 8, 6), context_size=8, attention_size=7),
        ),
        reads="ids",
        writes="ids",
    ),
}
for name, position in POSITIONS.items():
    options = {"blind": name == "no position", "backends": BOTH}
    CASES |= {
        f"encoder, {name}": Case(lambda p=position: WithPositions(stack(), p()), "vectors", **options),
        f"language model, {name}": Case(
            lambda p=position: TransformerLM(V, stack(), position=p()), writes="ids", backends=BOTH
        ),
        f"translator, {name}": Case(
            lambda p=position: Translator(V, V, transformer(), position=p()), "ids", "ids", **options
        ),
    }
for residual in ("pre-ln", "rezero"):
    CASES |= {
        f"encoder, {residual}": Case(
            lambda r=residual: WithPositions(stack(residual=r), PositionScheme()), "vectors", blind=True, backends=BOTH
        ),
        f"causal, {residual}": Case(
            lambda r=residual: WithPositions(stack(residual=r), ALiBi(H), causal=True), writes="vectors", backends=BOTH
        ),
        f"encoder and decoder, {residual}": Case(
            lambda r=residual: BothWithPositions(transformer(residual=r), RoPE(K)), "vectors", "vectors", backends=BOTH
        ),
    }
for pool in ("mean", "max", "cls"):
    CASES |= {
        f"classifier, {pool}": Case(
            lambda p=pool: TransformerClassifier(V, stack(), 3, pool=p), "ids", blind=True, backends=BOTH
        ),
        f"classifier, {pool}, learned": Case(
            lambda p=pool: TransformerClassifier(V, stack(), 3, position=LearnedPositions(D, 20), pool=p),
            "ids",
            backends=BOTH,
        ),
    }
CASES |= {
    "BERT": Case(bert, "ids", backends=BOTH),
    "BERT, pre-ln": Case(lambda: bert(residual="pre-ln"), "ids", backends=BOTH),
    "BERT, both tasks": Case(lambda: BothTasks(BERTForPreTraining(bert(pooler=True))), "ids", backends=BOTH),
    "BERT, texts, cls": Case(lambda: BERTForSequenceClassification(bert(pooler=True), 3), "ids", backends=BOTH),
    "BERT, texts, mean": Case(lambda: BERTForSequenceClassification(bert(), 3, pool="mean"), "ids", backends=BOTH),
    "BERT, tokens": Case(lambda: BERTForTokenClassification(bert(), 3), "ids", backends=BOTH),
    "GPT": Case(gpt, writes="ids", backends=BOTH),
    "GPT, rope": Case(lambda: gpt(RoPE(K)), writes="ids", backends=BOTH),
    "GPT, alibi": Case(lambda: gpt(ALiBi(H)), writes="ids", backends=BOTH),
}


def cases(wanted=lambda case: True, each_backend=True):
    """Parametrised over the models that are wanted, and over both paths of those that have two."""
    found = [
        pytest.param(case, backend, id=name if backend is None else f"{name}, {backend}")
        for name, case in CASES.items()
        if wanted(case)
        for backend in (case.backends if each_backend else case.backends[:1])
    ]
    return pytest.mark.parametrize(("case", "backend"), found)


def made(case, seed=0):
    """The model in float64 with random parameters: none is zero, as biases and ReZero's alpha are at the start."""
    model, generator = case.make().double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * noise if "norm" in name and "weight" in name else 0.5 * noise)
    return model


def sequence(kind, *shape, seed=0):
    """Tokens or vectors."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "ids":
        return torch.randint(4, V, shape, generator=generator)
    return torch.randn(*shape, D, generator=generator, dtype=torch.float64)


def given(case, rows=B, seed=0):
    """What the model reads and what it writes; None for what it does not."""
    read = None if case.reads is None else sequence(case.reads, rows, S, seed=seed)
    return read, None if case.writes is None else sequence(case.writes, rows, T, seed=seed + 1)


def run(model, backend, read=None, mask=None, written=None):
    """Call a model with what it takes."""
    everything = None if read is None else torch.ones(read.shape[:2], dtype=torch.bool, device=read.device)
    args = [] if read is None else [read, everything if mask is None else mask]
    args += [] if written is None else [written]
    with attention_backend("sdpa" if backend is None else backend):
        return model(*args)


def gradients(model, out):
    """Of all parameters, under an arbitrary weighting of the outputs."""
    weighting = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype).to(out.device)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(out, parameters, weighting), strict=True))


def per_token(case, out):
    """Whether there is an output for each token that was read."""
    return case.writes is None and out.ndim == 3


# --- a future token changes nothing before it -----------------------------------


@cases(lambda case: case.writes)
def test_a_future_token_changes_nothing_before_it(case, backend):
    """Fails if an output sees a token after its own, by a bit; or if a model sees nothing at all.

    The weight of a hidden key is exactly 0, so not even a rounding may differ.
    """
    model, (read, written) = made(case), given(case)
    before = run(model, backend, read, MASK, written)
    for t in (1, T - 1):
        changed = written.clone()
        changed[:, t:] = 100 * sequence(case.writes, B, T - t, seed=5) if case.writes == "vectors" else 1
        after = run(model, backend, read, MASK, changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t:] != before[:, t:]).any(-1).all(), "an output does not depend on its own token"
        if t == 1:
            assert (after[:, -1] != before[:, -1]).any(-1).all()


@cases(lambda case: case.writes)
def test_a_longer_text_has_the_same_beginning(case, backend):
    """Fails if an output depends on how long the text is: positions counted from the end, a mean over all tokens."""
    model, (read, written) = made(case), given(case)
    whole = run(model, backend, read, MASK, written)
    for t in (1, T - 1):
        torch.testing.assert_close(run(model, backend, read, MASK, written[:, :t]), whole[:, :t], **EXACT)


# --- padding changes nothing ----------------------------------------------------


@cases(lambda case: case.reads)
def test_padding_changes_nothing(case, backend):
    """Fails if padding is attended to, pooled, counted or turned into a gradient: each sentence alone is the reference.

    More padding, and anything else in its place, must change nothing either, with and without gradients.
    """
    model, (read, written) = made(case), given(case)
    alone = [
        run(model, backend, read[b : b + 1, :n], None, None if written is None else written[b : b + 1])
        for b, n in enumerate(LENGTHS)
    ]
    together = run(model, backend, read, MASK, written)
    other = torch.where(MASK if case.reads == "ids" else MASK[..., None], read, sequence(case.reads, B, S, seed=8))
    more = torch.cat([other, sequence(case.reads, B, 3, seed=9)], 1)
    longer = run(model, backend, more, length_mask(LENGTHS, S + 3), written)
    with torch.no_grad():
        quiet = run(model, backend, more, length_mask(LENGTHS, S + 3), written)
    assert torch.equal(run(model, backend, other, MASK, written), together), "other content in the same places"
    for b, n in enumerate(LENGTHS):
        real = slice(n) if per_token(case, together) else ...
        for out in (together, longer, quiet):
            torch.testing.assert_close(out[b][real], alone[b][0], **EXACT)

    def all_of_them(outs):
        return torch.cat([out.reshape(-1, *out.shape[2:]) if out.ndim > 2 else out for out in outs])

    wanted = gradients(model, all_of_them(alone))
    for out in (together, longer):
        rows = [out[b : b + 1, :n] if per_token(case, out) else out[b : b + 1] for b, n in enumerate(LENGTHS)]
        torch.testing.assert_close(gradients(model, all_of_them(rows)), wanted, **EXACT)


# --- order ----------------------------------------------------------------------

ORDER = torch.tensor([3, 0, 6, 2, 5, 1, 4])


@cases(lambda case: case.reads)
def test_order_counts_where_there_are_positions_and_only_there(case, backend):
    """Fails if a model without positions is not blind to the order (something leaks it), or one with them is.

    Blind: the outputs of permuted tokens are the outputs, permuted; one output for all tokens stays.
    """
    model, (read, written) = made(case), given(case)
    before, after = run(model, backend, read, None, written), run(model, backend, read[:, ORDER], None, written)
    wanted = before[:, ORDER] if per_token(case, before) else before
    if case.blind:
        torch.testing.assert_close(after, wanted, **EXACT)
    else:
        assert (after - wanted).abs().flatten(1).amax(1).min() > 1e-3


# --- gradients ------------------------------------------------------------------


@cases(each_backend=False)
def test_every_parameter_gets_a_gradient(case, backend):
    """Fails if a parameter is made and never used, or cut off from the loss, or its gradient is not a number.

    No model needs an exception once ReZero's alpha is not 0. A key's bias alone would: it adds one number to all
    scores of a query, which the softmax does not see; in `in_proj_bias` it stands between two that count.
    """
    model, (read, written) = made(case), given(case)
    for name, gradient in gradients(model, run(model, backend, read, None if read is None else MASK, written)).items():
        assert gradient.isfinite().all(), name
        assert gradient.abs().max() > 1e-8, name


def test_keys_biases_are_the_exception_that_has_no_gradient():
    """Fails if scores are not scaled dot products under a softmax; shown where no position turns queries and keys."""
    model = made(CASES["translator, no position"])
    read, written = given(CASES["translator, no position"])
    found = [g for n, g in gradients(model, model(read, MASK, written)).items() if n.endswith("in_proj_bias")]
    assert len(found) == 6
    for gradient in found:
        q, k, v = gradient.view(3, D)
        assert k.abs().max() < 1e-12 * gradient.abs().max()
        assert q.abs().min() > 0
        assert v.abs().min() > 0


# --- saved and loaded -----------------------------------------------------------


@cases(each_backend=False)
def test_a_saved_and_loaded_model_gives_the_same_bits(case, backend):
    """Fails if something that was learned, or is needed, is neither a parameter nor a buffer nor made anew."""
    model, (read, written) = made(case).float().eval(), given(case)
    read, written = (x.float() if x is not None and x.is_floating_point() else x for x in (read, written))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.manual_seed(123)
    other = case.make().eval()
    mask = None if read is None else MASK
    wanted = run(model, backend, read, mask, written)
    assert not torch.equal(run(other, backend, read, mask, written), wanted)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(other, backend, read, mask, written), wanted)


# --- other devices --------------------------------------------------------------


@cases(
    lambda case: case.reads is None or case.backends == BOTH
)  # the others look at the mask, and "meta" holds no numbers
def test_nothing_is_made_on_another_device(case, backend):
    """Fails if a mask, a position or a state is made on the CPU: here the model and its input are on "meta"."""
    model, (read, written) = made(case).to("meta"), given(case)
    args = [] if read is None else [read.to("meta"), None]
    args += [] if written is None else [written.to("meta")]
    with attention_backend("sdpa" if backend is None else backend):
        assert model(*args).is_meta


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@cases()
def test_on_the_gpu(case, backend):
    """Fails if a model computes something else on a GPU: outputs and gradients. In float64: no TF32."""
    model, (read, written) = made(case), given(case)
    mask = None if read is None else MASK
    wanted = run(model, backend, read, mask, written)
    expected = gradients(model, wanted)
    model.cuda()
    there = [None if x is None else x.cuda() for x in (read, mask, written)]
    out = run(model, backend, *there)
    torch.testing.assert_close(out.cpu(), wanted, **EXACT)
    found = {name: gradient.cpu() for name, gradient in gradients(model, out).items()}
    torch.testing.assert_close(found, expected, **EXACT)
