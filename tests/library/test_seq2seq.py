"""Encoder and decoders against torch.nn composed by hand; searches against greedy choice and against enumeration."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.datasets import synthetic
from course_lib.functional import dropout_mask
from course_lib.lstm_gru import GRU, LSTM
from course_lib.rnn import RNN
from course_lib.seq2seq import AttentionDecoder, Decoder, Encoder, OutputLayer, Seq2Seq
from course_lib.text import EOS, PAD, SOS, length_mask, pad_batch
from course_lib.train import evaluate, fit
from course_lib.translation import (
    alignment,
    alignment_accuracy,
    scheduled_sampling,
    translate,
    translation_batches,
    translation_loss,
)

EXACT = {"rtol": 1e-10, "atol": 1e-10}
LAYERS = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}
TORCH = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
VS, V, X, Y, D, U, A = 11, 9, 3, 4, 5, 6, 7  # vocabularies, widths of embeddings, encoder, decoder, attention
SOURCES = [[4, 5, 6, 7, 8], [9, 10], [6, 6, 4]]
TARGETS = [[4, 5], [6, 7, 8, 8], [5]]


def small(kind="attention", layer="GRU", *, bidirectional=True, layers=1, dropout=0.0, seed=0):
    """A small model in float64 and evaluation mode; `kind` is plain, fed or attention."""
    torch.manual_seed(seed)
    make = LAYERS[layer]
    encoder = Encoder(VS, make(X, D, layers, bidirectional=bidirectional), dropout)
    E = encoder.output_size
    width = Y if kind == "plain" else Y + E
    if kind == "attention":
        decoder = AttentionDecoder(V, make(width, U, layers), E, A, dropout=dropout)
    else:
        decoder = Decoder(V, make(width, U, layers), E, feed_context=kind == "fed", dropout=dropout)
    return Seq2Seq(encoder, decoder).double().eval()


def batch():
    """All three pairs, padded."""
    return next(translation_batches(SOURCES, TARGETS, 3, shuffle=False))


KINDS = pytest.mark.parametrize("kind", ["plain", "fed", "attention"])


# --- the model, by hand -----------------------------------------------------------


def by_hand(model, kind, layer, source, target_in):
    """One unpadded sentence through torch.nn's layers and the equations of the docstrings: logits (T, V), weights."""
    encoder, decoder = model.encoder, model.decoder
    two = encoder.layer.bidirectional
    read = TORCH[layer](X, D, encoder.layer.num_layers, batch_first=True, bidirectional=two).double()
    write = TORCH[layer](decoder.layer.input_size, U, decoder.layer.num_layers, batch_first=True).double()
    for mine, theirs in ((read, encoder.layer), (write, decoder.layer)):
        for name, parameter in theirs.named_parameters():
            module_parameter(mine, name, parameter)
    x = encoder.embedding.weight[torch.tensor([source])] * math.sqrt(X)
    states, last = read(x)
    last = last[0] if layer == "LSTM" else last
    context = torch.cat([last[-2, 0], last[-1, 0]]) if two else last[-1, 0]
    start = torch.tanh(decoder.bridge.map.weight @ context + decoder.bridge.map.bias)
    N = decoder.layer.num_layers
    hidden = tuple(part.reshape(N, 1, U) for part in start.split(N * U))
    hidden = hidden if layer == "LSTM" else hidden[0]
    rows, weights = [], []
    for token in target_in:
        word, c = decoder.embedding.weight[token] * math.sqrt(Y), context
        if kind == "attention":
            top = (hidden[0] if layer == "LSTM" else hidden)[-1, 0]
            net = decoder.attention
            hiddens = torch.tanh(net.query.weight @ top + states[0] @ net.key.weight.T)
            weights.append((hiddens @ net.score.weight[0]).softmax(0))
            c = weights[-1] @ states[0]
        fed = word if kind == "plain" else torch.cat([word, c])
        output, hidden = write(fed.view(1, 1, -1), hidden)
        features = output[0, 0] if kind == "plain" else torch.cat([output[0, 0], fed])
        o = torch.tanh(decoder.readout.hidden.weight @ features + decoder.readout.hidden.bias)
        rows.append(decoder.embedding.weight @ o + decoder.readout.bias)
    return torch.stack(rows), weights


def module_parameter(module, name, parameter):
    """Put another module's parameter in place of this one's, so that gradients arrive there."""
    del module._parameters[name]
    setattr(module, name, parameter)
    module._flat_weights = [getattr(module, each) for each in module._flat_weights_names]


@KINDS
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("bidirectional", "layers"), [(False, 1), (True, 2)])
def test_logits_and_gradients_equal_torchs_layers_composed_by_hand(kind, layer, bidirectional, layers):
    """Fails for any slip in the equations: direction, layer, order of parts, scaling, tying, padding.

    The reference takes one unpadded sentence at a time; the model takes the padded batch.
    """
    model = small(kind, layer, bidirectional=bidirectional, layers=layers)
    data, parameters = batch(), list(model.parameters())

    def gradients(losses):
        return torch.autograd.grad(sum(losses), parameters)

    logits = model(data.source, data.source_real, data.target_in)
    order = [
        TARGETS.index(row[: n - 1].tolist()) for row, n in zip(data.target_out, data.target_real.sum(1), strict=True)
    ]
    got, wanted = [], []
    for row, i in zip(logits, order, strict=True):
        reference, _ = by_hand(model, kind, layer, SOURCES[i], [SOS, *TARGETS[i]])
        torch.testing.assert_close(row[: len(TARGETS[i]) + 1], reference, **EXACT)
        truth = torch.tensor([*TARGETS[i], EOS])
        got.append(F.cross_entropy(row[: len(truth)], truth))
        wanted.append(F.cross_entropy(reference, truth))
    torch.testing.assert_close(gradients(got), gradients(wanted), **EXACT)


@KINDS
@pytest.mark.parametrize("layer", LAYERS)
def test_steps_equal_teacher_forcing(kind, layer):
    """Fails if a step forgets the state, or teacher forcing looks ahead."""
    model, data = small(kind, layer, layers=2), batch()
    state, rows = model.start(data.source, data.source_real), []
    for tokens in data.target_in.split(1, 1):  # (B, 1)
        before = {key: part.clone() for key, part in state.items()}
        logits, new = model.step(tokens, state)
        torch.testing.assert_close(state, before, rtol=0, atol=0)  # beam search goes back to old states
        state = new
        rows.append(logits)
    torch.testing.assert_close(torch.stack(rows, 1), model(*data[:3]), **EXACT)


@KINDS
def test_states_are_batch_first(kind):
    """Fails if beam search could not reorder the state by its first axis."""
    model, data = small(kind, "LSTM", layers=2), batch()
    state = model.start(data.source, data.source_real)
    _, after = model.step(data.target_in[:, :1], state)
    for part in (*state.values(), *after.values()):
        assert len(part) == 3
    rows = torch.tensor([2, 0, 0, 1])
    wanted = model.step(data.target_in[rows, 1:2], {key: part[rows] for key, part in after.items()})[0]
    torch.testing.assert_close(model.step(data.target_in[:, 1:2], after)[0][rows][1:2], wanted[1:2], **EXACT)
    moved = model.step(torch.full((4, 1), 5), {key: part[rows] for key, part in after.items()})[0]
    torch.testing.assert_close(moved, model.step(torch.full((3, 1), 5), after)[0][rows], **EXACT)


@KINDS
def test_padding_changes_nothing(kind):
    """Fails if the source's padding is read, or the mask does not reach the attention."""
    model, data = small(kind), batch()
    ids = torch.full((3, 9), PAD)
    ids[:, : data.source.shape[1]] = data.source
    mask = F.pad(data.source_real, (0, 9 - data.source.shape[1]))
    other = ids.masked_fill(~mask, 8)
    torch.testing.assert_close(model(ids, mask, data.target_in), model(*data[:3]), **EXACT)
    torch.testing.assert_close(model(other, mask, data.target_in), model(*data[:3]), **EXACT)


def test_mean_context_is_that_of_each_sentence_alone():
    """Fails if padding takes part: a mean over too many words."""
    torch.manual_seed(0)
    encoder = Encoder(VS, GRU(X, D, bidirectional=True), pool="mean").double()
    ids, mask = pad_batch(SOURCES)
    states, context = encoder(ids, mask)
    for b, source in enumerate(SOURCES):
        torch.testing.assert_close(context[b], states[b, : len(source)].mean(0), **EXACT)
        torch.testing.assert_close(encoder(torch.tensor([source]))[1][0], context[b], **EXACT)


def test_no_mask_means_no_padding():
    """Fails if None is not the mask of True everywhere."""
    model, ids = small(), torch.tensor([[4, 5, 6]])
    target = torch.tensor([[SOS, 4]])
    torch.testing.assert_close(model(ids, None, target), model(ids, torch.ones(1, 3).bool(), target), rtol=0, atol=0)


def test_the_context_is_the_only_bridge_of_the_plain_decoder():
    """Fails if a decoder without attention sees more of the source than one vector."""
    for kind in ("plain", "fed"):
        model, target = small(kind), torch.tensor([[SOS, 4, 5]])
        context = torch.randn(1, 2 * D, dtype=torch.float64)
        logits = [model.decoder(target, model.decoder.start(torch.randn(1, S, 2 * D), context))[0] for S in (3, 8)]
        torch.testing.assert_close(*logits, rtol=0, atol=0)


def test_the_context_acts_at_every_step_only_if_fed():
    """Fails if feed_context changes nothing but the first state."""
    for kind, same in (("plain", True), ("fed", False)):
        decoder, target = small(kind).decoder, torch.tensor([[SOS, 4]])
        state = decoder.start(torch.zeros(1, 1, 2 * D), torch.zeros(1, 2 * D, dtype=torch.float64))
        changed = decoder(target, state | {"context": torch.ones(1, 2 * D, dtype=torch.float64)})[0]
        assert torch.equal(decoder(target, state)[0], changed) == same


def test_output_weights_are_the_embeddings():
    """Fails if the weights are copied, not shared, or counted twice."""
    model = small()
    assert model.decoder.readout.weight is model.decoder.embedding.weight
    assert sum(p.shape == (V, Y) for p in model.parameters()) == 1


@KINDS
def test_output_weights_stay_the_embeddings(kind):
    """Fails if loading with assign=True, or room made elsewhere, makes two tensors of one, or a name is lost."""
    model, others = small(kind), [small(kind, seed=1), small(kind, seed=2).to("meta"), small(kind, seed=3).to("meta")]
    state = {name: x.clone() for name, x in model.state_dict().items()}
    assert {"decoder.readout.weight", "decoder.embedding.weight"} <= state.keys()
    assert not any("readout.embedding" in name for name in state)
    others[2].to_empty(device="cpu")
    for other, assign in zip(others, (True, True, False), strict=True):
        other.load_state_dict(state, assign=assign)
        for each in (other, copy.deepcopy(other)):
            assert each.decoder.readout.weight is each.decoder.embedding.weight
            assert each.decoder.readout.embedding is each.decoder.embedding
            assert torch.equal(each(*batch()[:3]), model(*batch()[:3]))


def test_dropout_acts_in_training_alone():
    """Fails if evaluation is random, or training is not."""
    for kind in ("plain", "fed", "attention"):
        model, data = small(kind, dropout=0.5), batch()
        assert torch.equal(model(*data[:3]), model(*data[:3]))
        model.train()
        assert not torch.equal(model(*data[:3]), model(*data[:3]))
    readout = OutputLayer(Y, nn.Embedding(V, Y), 0.5)
    features = torch.randn(2, Y)
    assert not torch.equal(readout(features), readout(features))


@pytest.mark.parametrize("kind", ["plain", "attention"])
def test_dropout_stands_where_it_should(kind):
    """Fails if one of the dropouts is missing: of both embeddings, the encoder's states and context, the features, o.

    The reference repeats the draws in this order and multiplies by the masks itself.
    """
    model, data, p = small(kind, dropout=0.4, seed=5).train(), batch(), 0.4
    masks = lambda x: dropout_mask(x.shape, p).double() / (1 - p)  # noqa: E731
    torch.manual_seed(9)
    found = model(*data[:3])
    torch.manual_seed(9)
    encoder, decoder, lengths = model.encoder, model.decoder, data.source_real.sum(1)
    x = F.embedding(data.source, encoder.embedding.weight) * math.sqrt(X)
    states, last = encoder.layer(x * masks(x), lengths=lengths)
    context = torch.cat([last[-2], last[-1]], 1)
    states, context = states * masks(states), context * masks(context)
    state = decoder.start(states, context, data.source_real)
    word = F.embedding(data.target_in, decoder.embedding.weight) * math.sqrt(Y)
    word, hidden, rows = word * masks(word), state["h"].transpose(0, 1), []
    for t in range(word.shape[1]):
        fed = word[:, t]
        if kind == "attention":
            given = state["keys"], state["states"], data.source_real.unsqueeze(1)
            fed = torch.cat([fed, decoder.attention(hidden[-1], *given)[0]], 1)
        output, hidden = decoder.layer.step(fed, hidden)
        rows.append(output if kind == "plain" else torch.cat([output, fed], 1))
    features, readout = torch.stack(rows, 1), decoder.readout
    o = torch.tanh(readout.hidden(features * masks(features)))
    torch.testing.assert_close(found, F.linear(o * masks(o), readout.weight, readout.bias), **EXACT)


@pytest.mark.parametrize("layer", ["GRU", "LSTM"])
@pytest.mark.parametrize("kind", ["plain", "attention"])
def test_a_model_can_be_compiled_and_exported(kind, layer):
    """Fails if the forward pass branches on what stands in the mask."""
    torch.compiler.reset()
    model, data = small(kind, layer).float(), batch()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(model, tuple(data[:3])).module()
    for lengths in ([5, 2, 3], [1, 5, 5]):
        given = data.source, length_mask(lengths, 5), data.target_in
        torch.testing.assert_close(compiled(*given), model(*given))
        torch.testing.assert_close(exported(*given), model(*given))


# --- training -----------------------------------------------------------------------


def test_translation_batches_shift_the_target_by_one():
    """Fails if target_in and target_out are not one step apart, a pair is torn, or a pair is missing."""
    seen = []
    for source, source_real, target_in, target_out, mask in translation_batches(SOURCES, TARGETS, 2):
        assert (target_in[:, 0] == SOS).all()
        for row in range(len(source)):
            n = mask[row].sum()
            assert mask[row, :n].all()
            words = target_out[row, : n - 1].tolist()
            assert target_out[row, n - 1] == EOS
            assert target_in[row, 1:n].tolist() == words
            assert (target_in[row, n:] == PAD).all()
            assert (target_out[row, n:] == PAD).all()
            seen.append((source[row][source_real[row]].tolist(), words))
    assert sorted(seen) == sorted(zip(SOURCES, TARGETS, strict=True))


def test_translation_batches_are_shuffled_by_the_generator():
    """Fails if epochs are alike, or a seed does not fix the order."""
    sources = [[4 + i % 5] * (1 + i % 3) for i in range(40)]

    def order(seed):
        generator = torch.Generator().manual_seed(seed)
        return [b.source.tolist() for b in translation_batches(sources, sources, 4, generator=generator)]

    assert order(0) == order(0) != order(1)


def test_batches_put_similar_lengths_together():
    """Fails if pairs are not sorted by target length and then by source length."""
    sources, targets = [[4] * n for n in (5, 1, 5, 1)], [[4] * n for n in (2, 3, 3, 2)]
    masks = [(b.source_real, b.target_real) for b in translation_batches(sources, targets, 1, shuffle=False)]
    assert [(s.shape[1], t.shape[1]) for s, t in masks] == [(1, 3), (5, 3), (1, 4), (5, 4)]


@KINDS
def test_loss_is_the_sum_over_real_tokens(kind):
    """Fails if padding counts, means are returned for sums, or the accuracy is that of another step."""
    model, data = small(kind), batch()
    sums = translation_loss(model, data)
    log_probs = model(*data[:3]).log_softmax(-1)
    loss, right = 0.0, 0
    for b, t in itertools.product(range(3), range(data.target_out.shape[1])):
        if data.target_real[b, t]:
            loss -= log_probs[b, t, data.target_out[b, t]]
            right += int(log_probs[b, t].argmax() == data.target_out[b, t])
    torch.testing.assert_close(sums["loss"], loss, **EXACT)
    assert (sums["count"], sums["accuracy"]) == (10, right)


def test_label_smoothing_acts_in_training_alone():
    """Fails if validation losses are smoothed, or the smoothed loss is not (1 - s) of the truth and s of the mean."""
    model, data = small(), batch()
    assert translation_loss(model, data, label_smoothing=0.3)["loss"] == translation_loss(model, data)["loss"]
    model.train()  # without dropout this changes nothing else
    log_probs = model(*data[:3]).log_softmax(-1)[data.target_real]
    truth = log_probs.gather(1, data.target_out[data.target_real].unsqueeze(1)).sum()
    wanted = -0.7 * truth - 0.3 * log_probs.mean(-1).sum()
    torch.testing.assert_close(translation_loss(model, data, label_smoothing=0.3)["loss"], wanted, **EXACT)


@KINDS
def test_free_running_feeds_the_models_own_words(kind):
    """Fails if true words slip in at 0 or own words at 1."""
    model, data = small(kind, seed=3), batch()
    torch.testing.assert_close(scheduled_sampling(model, *data[:3], teacher_forcing=1.0), model(*data[:3]), **EXACT)
    logits = scheduled_sampling(model, *data[:3])
    own = torch.cat([data.target_in[:, :1], logits.argmax(-1)[:, :-1]], 1)
    torch.testing.assert_close(model(data.source, data.source_real, own), logits, **EXACT)
    assert not torch.equal(own, data.target_in)


def test_scheduled_sampling_mixes_by_the_generator():
    """Fails if the share of true words is not p, or the same for a whole batch."""

    class Echo:
        """A model that always predicts 7 and remembers what it was fed."""

        vocab_size = V

        def __init__(self):
            self.fed = []

        def start(self, source, source_real):
            return {}

        def step(self, tokens, state):
            self.fed.append(tokens[:, 0])
            return F.one_hot(torch.full_like(tokens[:, 0], 7), V).double(), state

    model, target_in = Echo(), torch.full((200, 31), 4)
    scheduled_sampling(model, None, None, target_in, 0.25, torch.Generator().manual_seed(0))
    fed = torch.stack(model.fed, 1)
    assert (fed[:, 0] == 4).all()
    share = (fed[:, 1:] == 4).double()
    assert share.mean().item() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 6000))
    assert 0 < share[:, 0].mean() < 1
    again = Echo()
    scheduled_sampling(again, None, None, target_in, 0.25, torch.Generator().manual_seed(0))
    assert torch.equal(torch.stack(again.fed, 1), fed)


def test_training_with_own_words_uses_them():
    """Fails if teacher_forcing does not reach the loss, or acts in evaluation mode."""
    model, data = small(seed=3), batch()
    forced = translation_loss(model, data)["loss"]
    assert translation_loss(model, data, teacher_forcing=0.0)["loss"] == forced
    model.train()
    loss = translation_loss(model, data, teacher_forcing=0.0)["loss"]
    wanted = F.cross_entropy(
        scheduled_sampling(model, *data[:3])[data.target_real], data.target_out[data.target_real], reduction="sum"
    )
    torch.testing.assert_close(loss, wanted, **EXACT)
    assert loss != forced


def test_each_model_learns_a_toy_translation():
    """Fails if gradients do not reach a part that is needed: 15 short pairs, learned by heart."""
    pairs = [([4 + i % 5, 4 + i % 3], [4 + i % 3, 4 + i % 5, 4 + i % 5]) for i in range(15)]
    sources, targets = zip(*pairs, strict=True)
    for kind in ("plain", "fed", "attention"):
        torch.manual_seed(0)
        encoder = Encoder(VS, GRU(16, 16))
        if kind == "attention":
            decoder = AttentionDecoder(V, GRU(32, 16), 16, 16)
        else:
            decoder = Decoder(V, GRU(16 + 16 * (kind == "fed"), 16), 16, feed_context=kind == "fed")
        model = Seq2Seq(encoder, decoder)
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        fit(model, lambda epoch: translation_batches(sources, targets, 15), translation_loss, optimizer, epochs=60)
        found = translate(model, sources, max_new_tokens=10)
        assert [hypothesis.tokens for hypothesis in found] == list(targets), kind
        assert model.training
        loss = evaluate(model, translation_batches(sources, targets, 4, shuffle=False), translation_loss)
        assert loss["accuracy"] == 1.0


# --- alignment --------------------------------------------------------------------------


def test_alignment_equals_the_weights_by_hand():
    """Fails if rows are shifted by a step or padding has weight."""
    model, data = small("attention", "LSTM"), batch()
    weights = alignment(model, data.source, data.source_real, data.target_in)
    for b in range(3):
        source = data.source[b][data.source_real[b]].tolist()
        _, wanted = by_hand(model, "attention", "LSTM", source, data.target_in[b].tolist())
        torch.testing.assert_close(weights[b, :, : len(source)], torch.stack(wanted), **EXACT)
        assert (weights[b, :, len(source) :] == 0).all()


def test_alignment_accuracy_of_the_toy_languages_truth():
    """Fails if rows and columns are swapped: the truth as weights scores 1, its reverse less."""
    _, target, truth = synthetic.translation_pairs(1, seed=32)[0]
    weights = F.one_hot(torch.tensor(truth)).double()
    assert alignment_accuracy(weights, truth) == 1.0
    wanted = sum(a == b for a, b in zip(truth, truth[::-1], strict=True)) / len(target)
    assert alignment_accuracy(weights, truth[::-1]) == wanted < 1


# --- what is refused ----------------------------------------------------------------------


def refused(message, call, *arguments, **options):
    """The call ends in a ValueError with that message."""
    with pytest.raises(ValueError, match=message):
        call(*arguments, **options)


def test_sources_that_cannot_be_read_are_refused():
    """Fails if a bad source ends in an error of torch, or in numbers."""
    model = small()
    start, ids = model.start, torch.tensor([[4, 5], [6, 7]])
    refused(r"source must be a tensor \(B, T\), got one of shape \(3,\)", start, torch.tensor([4, 5, 6]))
    refused(r"x has shape \(0, 3, 3\): an empty batch or no steps", start, torch.zeros(0, 3, dtype=torch.int64))
    refused(r"x has shape \(2, 0, 3\): an empty batch or no steps", start, torch.zeros(2, 0, dtype=torch.int64))
    refused("source must be torch.int64, got torch.float32", start, torch.ones(2, 3))
    refused("source must be from 0 to 10, got 4 to 11", start, torch.tensor([[4, 11]]))
    refused("source must be from 0 to 10, got -1 to 4", start, torch.tensor([[4, -1]]))
    refused("source is on meta, wanted cpu", start, ids.to("meta"))
    refused(r"source must be a torch tensor \(B, T\), got numpy.ndarray", start, ids.numpy())
    refused(r"source_real must be a tensor \(2, 2\), got one of shape \(2, 3\)", start, ids, length_mask([3, 2]))
    refused("source_real must be torch.bool, got torch.int64", start, ids, length_mask([2, 1]).long())
    refused("source_real has a row without a real token: row 1", start, ids, length_mask([2, 0]))
    refused("source_real has padding before a real token", start, ids, ~length_mask([1, 1], 2))


def test_targets_that_cannot_be_written_are_refused():
    """Fails if a bad target ends in an error of torch, or in numbers."""
    ids = torch.tensor([[4, 5], [6, 7]])
    for kind in ("plain", "attention"):
        model = small(kind)
        refused("target_in must be from 0 to 8, got 2 to 9", model, ids, None, torch.tensor([[2, 9], [2, 4]]))
        refused(r"target_in must be a tensor \(B, T\), got one of shape \(2,\)", model, ids, None, torch.tensor([2, 2]))
        refused("target_in holds 1 sentences, the state 2", model, ids, None, torch.tensor([[2, 4]]))
        refused("target_in must be torch.int64, got torch.float64", model, ids, None, torch.ones(2, 2).double())
        refused(
            r"must be a tensor \(B, T\), got one of shape \(2,\)", model.step, torch.ones(2).long(), model.start(ids)
        )
    refused(r"target_in must be a tensor \(B, T\)", scheduled_sampling, small(), ids, None, torch.tensor([2, 2]))


def test_models_that_do_not_fit_are_refused():
    """Fails if sizes that cannot work are found out in the middle of a batch."""
    two = GRU(X, D, bidirectional=True)
    refused("a bidirectional decoder would read the words", Decoder, V, two, D)
    refused("a bidirectional decoder would read the words", AttentionDecoder, V, two, 1, A)
    refused(
        "input_size 3; wanted the width of an embedding plus context_size 3",
        Decoder,
        V,
        GRU(3, D),
        3,
        feed_context=True,
    )
    refused("input_size 3; wanted the width of an embedding plus context_size 4", AttentionDecoder, V, GRU(3, D), 4, A)
    refused("output_size is 10, the decoder's context_size 5", Seq2Seq, Encoder(VS, two), Decoder(V, GRU(Y, U), 5))
    for make in (lambda p: Encoder(VS, two, p), lambda p: Decoder(V, GRU(Y, U), 5, dropout=p)):
        refused("dropout must be from 0 to below 1, got 1", make, 1)
    refused("vocab_size must be a whole number of at least 1, got 0", Encoder, 0, two)
    refused("pool must be one of 'last', 'mean', got 'first'", Encoder, VS, two, pool="first")
    refused("vocab_size must be a whole number of at least 1, got 0", Decoder, 0, GRU(Y, U), 5)
    decoder = Decoder(V, GRU(Y, U), 5)
    refused(
        r"context must be a tensor \(B, 5\), got one of shape \(2, 6\)",
        decoder.start,
        torch.zeros(2, 3, 6),
        torch.zeros(2, 6),
    )
    attentive = AttentionDecoder(V, GRU(Y + 5, U), 5, A)
    refused(
        r"states must be a tensor \(B, S, 5\), got one of shape \(2, 3, 6\)",
        attentive.start,
        torch.zeros(2, 3, 6),
        torch.zeros(2, 5),
    )


def test_halves_of_another_dtype_or_device_are_refused():
    """Fails if float32 states meet a float64 decoder, or two devices meet, with an error from inside torch."""
    model, target = small(), torch.tensor([[SOS]])
    model.encoder.float()
    refused("context must be torch.float64, got torch.float32", model, target, None, target)
    model.encoder.double().to("meta")
    refused("source is on cpu, wanted meta", model, target, None, target)
    context = torch.zeros(2, 2 * D, dtype=torch.float64, device="meta")
    refused("context is on meta, wanted cpu", model.decoder.start, torch.zeros(2, 3, 2 * D), context)


def test_bad_training_arguments_are_refused():
    """Fails if a probability outside its range, or pairs that are none, pass."""
    model, data = small(), batch()
    refused(r"label_smoothing must be from 0 to below 1, got 1", translation_loss, model, data, label_smoothing=1)
    refused(
        r"teacher_forcing is a probability from 0 to 1, got 1.5", translation_loss, model, data, teacher_forcing=1.5
    )
    refused(r"teacher_forcing is a probability from 0 to 1, got -0.1", scheduled_sampling, model, *data[:3], -0.1)
    refused("as many sources as targets, none empty, got 2 and 1", translation_batches, [[4], [5]], [[4]], 2)
    refused("as many sources as targets, none empty, got 2 and 2", translation_batches, [[4], []], [[4], [5]], 2)
    refused("at least 1, got 0", translation_batches, [], [], 2)
    refused("batch_size must be a whole number of at least 1, got 0", translation_batches, [[4]], [[4]], 0)
    refused("at least 1, got 0", translate, model, [])


def test_alignments_that_cannot_be_scored_are_refused():
    """Fails if a model without attention, or a truth of another sentence, gets a score."""
    refused(
        "a Decoder has no attention weights", alignment, small("plain"), torch.tensor([[4]]), None, torch.tensor([[2]])
    )
    refused(r"truth must be a tensor \(3,\), got one of shape \(2,\)", alignment_accuracy, torch.zeros(3, 2), [0, 1])
    refused("weights must be finite, got NaN", alignment_accuracy, torch.full((2, 2), torch.nan), [0, 1])
    refused("truth must be from 0 to 1, got 0 to 2", alignment_accuracy, torch.zeros(2, 2), [0, 2])
