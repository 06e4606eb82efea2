"""Language model and classifier on recurrent layers, against their parts put together by hand, in float64.

Sizes are pairwise different: V = 11, B = 3, T = 7, I = 4, D = 5; three classes have batches of their own size.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib import recurrent_models, train
from course_lib.functional import dropout_mask
from course_lib.generate import generate
from course_lib.lstm_gru import GRU, LSTM, ResetBeforeGRU
from course_lib.recurrent_models import LanguageModel, SequenceClassifier
from course_lib.rnn import RNN
from course_lib.text import PAD, contiguous_batches, length_mask
from course_lib.utils import number_of_parameters

V, B, T, I, D = 11, 3, 7, 4, 5  # noqa: E741
LENGTHS = [4, 7, 1]
TINY = {"rtol": 1e-10, "atol": 1e-10}
every_layer = pytest.mark.parametrize("kind", [RNN, LSTM, GRU, ResetBeforeGRU])


def tokens(*shape, seed=0):
    return torch.randint(0, V, shape, generator=torch.Generator().manual_seed(seed))


def language_model(kind=LSTM, dropout=0.0, num_layers=2, **options):
    torch.manual_seed(4)
    between = dropout if num_layers > 1 else 0.0
    return LanguageModel(V, kind(I, D, num_layers, dropout=between, **options), dropout).double()


def classifier(kind=LSTM, pool="last", dropout=0.0, num_classes=2, **options):
    torch.manual_seed(4)
    return SequenceClassifier(V, kind(I, D, **options), num_classes, pool, dropout).double()


def gradients(total, model):
    return torch.autograd.grad(total, list(model.parameters()))


def weighted(logits):
    """A sum in which each logit counts differently."""
    return (logits * torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view(logits.shape)).sum()


# --- LanguageModel --------------------------------------------------------------


@every_layer
def test_the_model_is_its_three_parts(kind):
    """Fails if the embedding's or output's weights are used otherwise, or forward and run differ."""
    model, ids = language_model(kind), tokens(B, T)
    states, last = model.layer(model.embedding.weight[ids])
    want = states @ model.output.weight.T + model.output.bias
    logits, state = model.run(ids)
    assert logits.shape == (B, T, V)
    torch.testing.assert_close([logits, state], [want, last], **TINY)
    assert torch.equal(model(ids), logits)
    torch.testing.assert_close(gradients(weighted(logits), model), gradients(weighted(want), model), **TINY)


@every_layer
def test_the_state_carried_on_is_one_pass(kind):
    """Fails if `run` starts afresh, gives back another state, or cuts the gradient."""
    model, ids = language_model(kind), tokens(B, T)
    want, last = model.run(ids)
    first, state = model.run(ids[:, :2])
    second, state = model.run(ids[:, 2:], state)
    both = torch.cat([first, second], 1)
    torch.testing.assert_close([both, state], [want, last], **TINY)
    torch.testing.assert_close(gradients(weighted(both), model), gradients(weighted(want), model), **TINY)


@every_layer
def test_no_prediction_sees_what_comes_later(kind):
    """Fails if a logit depends on a token at its right."""
    model, ids = language_model(kind), tokens(B, T)
    other = ids.clone()
    other[:, 4:] = (ids[:, 4:] + 1) % V
    torch.testing.assert_close(model(other)[:, :4], model(ids)[:, :4], **TINY)
    assert (model(other)[:, 4:] - model(ids)[:, 4:]).abs().amin((0, 1)).max() > 1e-4


@every_layer
def test_step_by_step_gives_the_last_logits_of_forward(kind):
    """Fails if the kept state is not the one after the tokens so far, or a step's tokens are read in part."""
    model, ids = language_model(kind), tokens(B, 12)
    state, done = model.start(B), 0
    for end in (3, 4, 5, 9, 12):  # the prompt, single tokens, and several at once
        logits, state = model.step(ids[:, done:end], state)
        torch.testing.assert_close(logits, model(ids[:, :end])[:, -1], **TINY)
        done = end


@every_layer
def test_the_rows_of_a_state_can_be_exchanged(kind):
    """Fails if the batch does not come first in a part of the state: a search drops rows and doubles others."""
    model, ids, rows = language_model(kind), tokens(B, T), torch.tensor([2, 0, 2, 1])
    _, state = model.step(ids[:, :4], model.start(B))
    chosen = {name: part.index_select(0, rows) for name, part in state.items()}
    logits, _ = model.step(ids[rows, 4:5], chosen)
    torch.testing.assert_close(logits, model(ids[rows, :5])[:, -1], **TINY)


def test_writing_reads_each_token_once(monkeypatch):
    """Fails if the prompt is read again at each step, which makes a text of T tokens cost T**2."""
    model, read = language_model(), []
    whole = model.run
    monkeypatch.setattr(model, "run", lambda ids, state: read.extend(ids[0].tolist()) or whole(ids, state))
    (new,) = generate(model, [[3, 1]], 6, torch.Generator().manual_seed(0))
    assert read == [3, 1, *new[:-1]]  # the last one is drawn, not read


def test_written_texts_are_those_of_whole_passes():
    """Fails if the state of one text leaks into the next, or the logits are those of another step."""
    model = language_model()
    for prompt in ([3], [1, 5, 2]):
        found, want = (
            generate(model, [prompt], 8, torch.Generator().manual_seed(1), use_cache=cached) for cached in (True, False)
        )
        assert found == want
        (best,), ids = generate(model, [prompt], 8, top_k=1), prompt
        for token in best:
            assert model(torch.tensor([ids]))[0, -1].argmax() == token
            ids = [*ids, token]


def test_a_language_model_drops_embeddings_and_states():
    """Fails if a mask is missing, scaled wrongly, or drawn where it should not be; evaluation drops nothing."""
    model, ids = language_model(GRU, dropout=0.4, num_layers=1), tokens(B, T)
    torch.manual_seed(7)
    found = model(ids)
    torch.manual_seed(7)
    x = model.embedding(ids) * dropout_mask((B, T, I), 0.4) / 0.6
    states = model.layer(x)[0] * dropout_mask((B, T, D), 0.4) / 0.6
    torch.testing.assert_close(found, model.output(states), **TINY)
    assert torch.equal(model.eval()(ids), language_model(GRU, num_layers=1)(ids))


@every_layer
def test_a_run_that_was_cut_goes_on_bit_for_bit(kind, tmp_path):
    """Fails if a checkpoint loses a weight, the optimizer's state or the random numbers of the dropouts."""
    text = tokens(60)

    def fit(epochs, name):
        train.set_seed(0)
        model = language_model(kind, dropout=0.3).float()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        history = train.fit(
            model, lambda epoch: contiguous_batches(text, 3, 5), train.language_model_loss, optimizer,
            epochs=epochs, clip_norm=1.0, valid_batches=contiguous_batches(text, 2, 10), checkpoint=tmp_path / name,
        )  # fmt: skip
        return history, model.state_dict()

    history, weights = fit(3, "whole.pt")
    fit(1, "cut.pt")
    again, resumed = fit(3, "cut.pt")
    assert again == history
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert all(torch.equal(resumed[name], weights[name]) for name in weights)


# --- SequenceClassifier ---------------------------------------------------------


def pooled_by_hand(model, text):
    """What the classifier reads off one text without padding."""
    states, last = model.layer(model.embedding(text[None]))
    if model.pool == "mean":
        return states.mean(1)
    if model.pool == "max":
        return states.max(1).values
    h_n = last[0] if isinstance(last, tuple) else last
    return torch.cat(list(h_n[-2:] if model.layer.bidirectional else h_n[-1:]), -1)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "two"])
@pytest.mark.parametrize("pool", ["last", "mean", "max"])
@every_layer
def test_a_padded_batch_is_each_text_alone(kind, pool, bidirectional, num_layers):
    """Fails if padding reaches a state, a pool or a gradient, or backward's last state is taken at the end."""
    model = classifier(kind, pool, num_classes=6, bidirectional=bidirectional, num_layers=num_layers)
    mask = length_mask(LENGTHS, T)
    ids = torch.where(mask, 2 + tokens(B, T) % (V - 2), PAD)  # PAD is nowhere among the real ones
    alone = [pooled_by_hand(model, row[:length]) for row, length in zip(ids, LENGTHS, strict=True)]
    want = model.output(torch.cat(alone))
    logits = model(ids, mask)
    assert logits.shape == (B, 6)
    torch.testing.assert_close(logits, want, **TINY)
    found = gradients(weighted(logits), model)
    torch.testing.assert_close(found, gradients(weighted(want), model), **TINY)
    of_embedding = found[0]
    assert (of_embedding[PAD] == 0).all()
    assert (of_embedding[ids[mask]] != 0).all() or pool == "max"  # no maximum at or after a token: no gradient
    wider = F.pad(torch.where(mask, ids, 9), (0, 4), value=8), F.pad(mask, (0, 4), value=False)
    torch.testing.assert_close(model(*wider), logits, **TINY)


@pytest.mark.parametrize("pool", ["last", "mean", "max"])
def test_a_classifier_drops_embeddings_and_the_pooled_vector(pool):
    """Fails if a mask is missing, scaled wrongly or drawn elsewhere; evaluation drops nothing."""
    model, ids, mask = classifier(GRU, pool, dropout=0.4), tokens(B, T), length_mask(LENGTHS, T)
    torch.manual_seed(7)
    found = model(ids, mask)
    torch.manual_seed(7)
    x = model.embedding(ids) * dropout_mask((B, T, I), 0.4) / 0.6
    rows = [model.layer(row[None, :length])[0][0] for row, length in zip(x, LENGTHS, strict=True)]
    reduce = {"last": lambda row: row[-1], "mean": lambda row: row.mean(0), "max": lambda row: row.amax(0)}[pool]
    vector = torch.stack([reduce(row) for row in rows]) * dropout_mask((B, D), 0.4) / 0.6
    torch.testing.assert_close(found, model.output(vector), **TINY)
    assert torch.equal(model.eval()(ids, mask), classifier(GRU, pool)(ids, mask))


def test_a_classifier_learns_what_only_the_first_token_says():
    """Fails if the end of a long text, or the padding after a short one, hides its beginning from the logits."""
    torch.manual_seed(0)
    ids = 2 + tokens(24, T) % (V - 2)
    labels = torch.arange(24) % 2
    ids[:, 0] = 2 + labels
    batch = (ids, length_mask([1 + n % T for n in range(24)], T), labels)
    model = classifier(GRU, "max", bidirectional=True).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    history = train.fit(model, lambda epoch: [batch], train.classification_loss, optimizer, epochs=40)
    assert history[-1]["train_accuracy"] == 1


# --- contiguous_batches -------------------------------------------------------------


def test_carrying_the_state_through_the_batches_reads_each_row_as_one_text():
    """Fails if the order of the batches is not that of the text: this is what the cut is for."""
    model, ids = language_model(), tokens(32)
    batches = contiguous_batches(ids, 3, 4)
    state, logits = None, []
    for inputs, _ in batches:
        found, state = model.run(inputs, state)
        logits.append(found)
    want = model(torch.stack([ids[start : start + 10] for start in (0, 10, 20)]))
    torch.testing.assert_close(torch.cat(logits, 1), want, **TINY)


# --- embeddings -----------------------------------------------------------------


@pytest.mark.parametrize(("make", "usual"), [(LanguageModel, 1.0), (SequenceClassifier, 0.1)])
def test_only_the_scale_of_the_embeddings_changes(make, usual):
    """Fails if the default is another, or another scale uses up other random numbers: layers after it would differ."""
    models = []
    for options in ({"embedding_std": 1.0}, {}, {"embedding_std": 0.5}):
        torch.manual_seed(3)
        models.append(make(V, GRU(I, D), **options))
    torch.manual_seed(3)
    GRU(I, D)
    torch.testing.assert_close(models[0].embedding.weight, nn.Embedding(V, I).weight)
    for model, std in zip(models[1:], (usual, 0.5), strict=True):
        torch.testing.assert_close(model.embedding.weight, std * models[0].embedding.weight)
        assert torch.equal(model.output.weight, models[0].output.weight)
        assert model.embedding.weight.requires_grad


# --- export ---------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "two"])
@pytest.mark.parametrize("kind", [RNN, LSTM, GRU])
def test_a_classifier_with_padding_can_be_compiled_and_exported(kind, bidirectional):
    """Fails if the forward pass branches on what stands in the mask."""
    torch.compiler.reset()
    model, ids = classifier(kind, "max", bidirectional=bidirectional).float(), tokens(B, T)
    other, whole = length_mask([7, 2, 3]), torch.ones_like(MASK)
    exported = torch.export.export(model.eval(), (ids, MASK)).module()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for real in (MASK, other, whole):
        torch.testing.assert_close(exported(ids, real), model(ids, real))
        torch.testing.assert_close(compiled(ids, real), model(ids, real))
        found, want = (gradients(weighted(run(ids, real)), model) for run in (compiled, model))
        torch.testing.assert_close(found, want)


# --- number_of_parameters -------------------------------------------------------


def test_parameters_are_counted_by_hand_and_shared_ones_once():
    """Fails if a bias is left out, or a tensor that two parts share counts twice."""
    one_layer = lambda gates, width: gates * D * (width + D + 2)  # noqa: E731
    for kind, gates in ((RNN, 1), (GRU, 3), (LSTM, 4)):
        assert number_of_parameters(kind(I, D, 2)) == one_layer(gates, I) + one_layer(gates, D)
        assert number_of_parameters(kind(I, D, 2, bidirectional=True)) == 2 * (
            one_layer(gates, I) + one_layer(gates, 2 * D)
        )
    model = LanguageModel(V, RNN(D, D))
    assert number_of_parameters(model) == V * D + one_layer(1, D) + V * D + V
    model.output.weight = model.embedding.weight
    assert number_of_parameters(model) == V * D + one_layer(1, D) + V
    assert number_of_parameters(nn.ReLU()) == 0


# --- errors ---------------------------------------------------------------------

IDS, MASK = tokens(B, T), length_mask(LENGTHS, T)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: LanguageModel(V, GRU(I, D, bidirectional=True)),
            "layer reads the token to be predicted",
        ),
        (lambda: LanguageModel(V, GRU(I, D), dropout=1.0), "dropout must be from 0 to below 1, got 1.0"),
        (lambda: LanguageModel(0, GRU(I, D)), "vocab_size must be a whole number of at least 1, got 0"),
        (lambda: language_model()(IDS[0]), r"ids must be a tensor \(B, T\), got one of shape \(7,\)"),
        (lambda: language_model()(IDS[:, :0]), r"x has shape \(3, 0, 4\): an empty batch or no steps"),
        (
            lambda: language_model().run(IDS, torch.zeros(2, B, D)),
            r"pair \(h, c\) of tensors \(2, 3, 5\), got Tensor",
        ),
        (lambda: classifier(pool="sum"), "pool must be one of 'last', 'mean', 'max', got 'sum'"),
        (lambda: classifier(dropout=-0.1), "dropout must be from 0 to below 1, got -0.1"),
        (lambda: classifier(num_classes=0), "num_classes must be a whole number of at least 1, got 0"),
        (
            lambda: LanguageModel(V, GRU(I, D), embedding_std=-1),
            "embedding_std must be a finite number above 0, got -1",
        ),
        (lambda: classifier()(IDS.numpy(), MASK), r"ids must be a torch tensor .*, got numpy.ndarray"),
        (lambda: classifier()(IDS, MASK.numpy()), r"real must be a torch tensor .*, got numpy.ndarray"),
        (lambda: language_model()(IDS + 5), "ids must be from 0 to 10, got 5 to 15"),
        (lambda: language_model()(IDS.double()), "ids must be torch.int64, got torch.float64"),
        (lambda: SequenceClassifier(-1, GRU(I, D)), "vocab_size must be a whole number of at least 1, got -1"),
        (lambda: classifier()(IDS, MASK[:, 1:]), r"real must be a tensor \(3, 7\), got one of shape \(3, 6\)"),
        (
            lambda: classifier()(IDS, MASK & torch.tensor([[1], [0], [1]]).bool()),
            "real has a row without a real token: row 1",
        ),
        (lambda: classifier()(IDS, MASK.long()), "real must be torch.bool, got torch.int64"),
        (
            lambda: classifier()(IDS, MASK.flip(1)),
            "real has padding before a real token",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call()


def test_every_pool_is_tested():
    """Fails if a pool is added without the tests above."""
    assert recurrent_models.POOLS == ("last", "mean", "max")


# --- on a GPU -------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_layer
def test_on_the_gpu(kind):
    """Fails if an index, a mask or the kept state stays on the CPU. In float64, where TF32 plays no part."""
    model, ids = language_model(kind), tokens(B, T)
    want = model(ids)
    torch.testing.assert_close(model.cuda()(ids.cuda()).cpu(), want, **TINY)
    state, done = model.start(B), 0
    for end in (4, 5, 7):
        logits, state = model.step(ids[:, done:end].cuda(), state)
        torch.testing.assert_close(logits.cpu(), want[:, end - 1], **TINY)
        done = end
    for pool in recurrent_models.POOLS:
        model, mask = classifier(kind, pool, bidirectional=True), length_mask(LENGTHS, T)
        want = model(ids, mask)
        torch.testing.assert_close(model.cuda()(ids.cuda(), mask.cuda()).cpu(), want, **TINY)
