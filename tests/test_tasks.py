"""Language model and classifier on recurrent layers, against their parts put together by hand, in float64.

Sizes are pairwise different: V = 11, B = 3, T = 7, I = 4, D = 5; three classes have batches of their own size.
"""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib import tasks, train
from course_lib.gated import GRU, LSTM, ResetBeforeGRU
from course_lib.language import sample
from course_lib.rnn import RNN, keep_mask
from course_lib.tasks import LanguageModel, SequenceClassifier, number_of_parameters, stream_batches
from course_lib.text import PAD, length_mask

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


def classifier(kind=LSTM, pool="last", dropout=0.0, classes=2, **options):
    torch.manual_seed(4)
    return SequenceClassifier(V, kind(I, D, **options), classes, pool, dropout).double()


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
def test_next_probs_is_the_last_softmax_of_forward(kind):
    """Fails if the kept state is not the one after the tokens so far."""
    model, ids = language_model(kind), tokens(12)
    next_probs = model.next_probs()
    for end in (3, 4, 5, 9, 12):  # the prompt, single tokens, and several at once
        p = next_probs(ids[:end])
        torch.testing.assert_close(p, model(ids[None, :end])[0, -1].softmax(-1), **TINY)
        assert p.sum().item() == pytest.approx(1, abs=1e-12)
        assert not p.requires_grad


def test_next_probs_reads_each_token_once(monkeypatch):
    """Fails if the prompt is read again at each step, which makes a text of T tokens cost T**2."""
    model, read = language_model(), []
    whole = model.layer.step
    monkeypatch.setattr(model.layer, "step", lambda x, state: read.append(x) or whole(x, state))
    drawn = sample(model.next_probs(), [3, 1], 6, torch.Generator().manual_seed(0))
    assert len(drawn) == 6
    want = model.embedding.weight[torch.tensor([3, 1, *drawn[:-1]])]  # the last one is drawn, not read
    assert torch.equal(torch.cat(read), want)


def test_sampling_is_that_of_whole_passes():
    """Fails if the state of one text leaks into the next, or the probabilities are those of another step."""
    model = language_model()
    whole = lambda ids: model(ids[None])[0, -1].softmax(-1)  # noqa: E731
    for prompt in ([3], [1, 5, 2]):
        found, want = (
            sample(next_probs, prompt, 8, torch.Generator().manual_seed(1))
            for next_probs in (model.next_probs(), whole)
        )
        assert found == want


def test_next_probs_keeps_one_text_only():
    """Fails if another text, a shorter one or none at all is answered from the state of this one."""
    model, ids = language_model(), tokens(6)
    next_probs = model.next_probs()
    with pytest.raises(ValueError, match="got 0 tokens, wanted the 0 read before and at least one more"):
        next_probs(ids[:0])
    next_probs(ids[:4])
    for other in (ids[:4], ids[:3], (ids + 1) % V):
        with pytest.raises(ValueError, match=f"got {len(other)} tokens, wanted the 4 read .* another next_probs"):
            next_probs(other)
    torch.testing.assert_close(next_probs(ids), model(ids[None])[0, -1].softmax(-1), **TINY)


def test_a_language_model_drops_embeddings_and_states():
    """Fails if a mask is missing, scaled wrongly, or drawn where it should not be; evaluation drops nothing."""
    model, ids = language_model(GRU, dropout=0.4, num_layers=1), tokens(B, T)
    torch.manual_seed(7)
    found = model(ids)
    torch.manual_seed(7)
    x = model.embedding(ids) * keep_mask((B, T, I), 0.4) / 0.6
    states = model.layer(x)[0] * keep_mask((B, T, D), 0.4) / 0.6
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
            model, lambda epoch: stream_batches(text, 3, 5), train.language_model_loss, optimizer,
            epochs=epochs, clip_norm=1.0, valid_batches=stream_batches(text, 2, 10), checkpoint=tmp_path / name,
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
    model = classifier(kind, pool, classes=6, bidirectional=bidirectional, num_layers=num_layers)
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
    x = model.embedding(ids) * keep_mask((B, T, I), 0.4) / 0.6
    rows = [model.layer(row[None, :length])[0][0] for row, length in zip(x, LENGTHS, strict=True)]
    reduce = {"last": lambda row: row[-1], "mean": lambda row: row.mean(0), "max": lambda row: row.amax(0)}[pool]
    vector = torch.stack([reduce(row) for row in rows]) * keep_mask((B, D), 0.4) / 0.6
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


# --- stream_batches -------------------------------------------------------------


@pytest.mark.parametrize(("count", "streams", "length"), [*itertools.product((9, 23, 24), (1, 2, 4), (1, 3, 5, 30))])
def test_streams_hold_every_token_once_and_go_on(count, streams, length):
    """Fails if a token is lost, read twice or out of order, or a row does not go on where it ended."""
    ids = torch.arange(100, 100 + count)
    batches = stream_batches(ids, streams, length)
    inputs, targets = (torch.cat(part, 1) for part in zip(*batches, strict=True))
    steps = (count - 1) // streams
    assert inputs.flatten().tolist() == list(range(100, 100 + streams * steps))  # row after row is the text
    assert targets.flatten().tolist() == list(range(101, 101 + streams * steps))
    assert count - 1 - streams * steps < streams
    assert [batch[0].shape[1] for batch in batches] == [length] * (steps // length) + [steps % length] * (
        steps % length > 0
    )


def test_carrying_the_state_through_the_batches_reads_each_row_as_one_text():
    """Fails if the order of the batches is not that of the text: this is what the cut is for."""
    model, ids = language_model(), tokens(32)
    batches = stream_batches(ids, 3, 4)
    state, logits = None, []
    for inputs, _ in batches:
        found, state = model.run(inputs, state)
        logits.append(found)
    want = model(torch.stack([ids[start : start + 10] for start in (0, 10, 20)]))
    torch.testing.assert_close(torch.cat(logits, 1), want, **TINY)


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
        (lambda: LanguageModel(0, GRU(I, D)), "vocab_size must be at least 1, got 0"),
        (lambda: language_model()(IDS[0]), r"x has shape \(7, 4\), wanted \(B, T, 4\)"),
        (lambda: language_model()(IDS[:, :0]), r"x has shape \(3, 0, 4\): an empty batch or no steps"),
        (
            lambda: language_model().run(IDS, torch.zeros(2, B, D)),
            r"pair \(h, c\) of tensors \(2, 3, 5\), got Tensor",
        ),
        (lambda: classifier(pool="sum"), "pool must be one of last, mean, max, got 'sum'"),
        (lambda: classifier(dropout=-0.1), "dropout must be from 0 to below 1, got -0.1"),
        (lambda: classifier(classes=0), "classes must be at least 1, got 0"),
        (lambda: SequenceClassifier(-1, GRU(I, D)), "vocab_size must be at least 1, got -1"),
        (lambda: classifier()(IDS, MASK[:, 1:]), r"ids have shape \(3, 7\), the mask \(3, 6\): they must be equal"),
        (
            lambda: classifier()(IDS, MASK & torch.tensor([[1], [0], [1]]).bool()),
            "row 1 of the mask has no real",
        ),
        (lambda: classifier()(IDS, MASK.long()), "mask must be boolean, True = real token, got torch.int64"),
        (
            lambda: classifier()(IDS, MASK.flip(1)),
            "padding before a real token: padding must be at the end",
        ),
        (lambda: stream_batches(IDS, 2, 3), r"wanted \(N,\) ids and sizes of at least 1, got \(3, 7\), 2 and 3"),
        (lambda: stream_batches(IDS[0], 0, 3), r"sizes of at least 1, got \(7,\), 0 and 3"),
        (lambda: stream_batches(IDS[0], 2, 0), r"sizes of at least 1, got \(7,\), 2 and 0"),
        (lambda: stream_batches(IDS[0], 7, 3), "7 tokens are too few for 7 streams"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call()


def test_every_pool_is_tested():
    """Fails if a pool is added without the tests above."""
    assert tasks.POOLS == ("last", "mean", "max")


# --- on a GPU -------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_layer
def test_on_the_gpu(kind):
    """Fails if an index, a mask or the kept state stays on the CPU. In float64, where TF32 plays no part."""
    model, ids = language_model(kind), tokens(B, T)
    want = model(ids)
    next_probs = model.cuda().next_probs()
    torch.testing.assert_close(model(ids.cuda()).cpu(), want, **TINY)
    for end in (4, 5, 7):
        torch.testing.assert_close(next_probs(ids[0, :end]).cpu(), want[0, end - 1].softmax(-1), **TINY)
    for pool in tasks.POOLS:
        model, mask = classifier(kind, pool, bidirectional=True), length_mask(LENGTHS, T)
        want = model(ids, mask)
        torch.testing.assert_close(model.cuda()(ids.cuda(), mask.cuda()).cpu(), want, **TINY)
