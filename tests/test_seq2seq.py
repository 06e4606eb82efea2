"""Encoder and decoders against torch.nn composed by hand; searches against greedy choice and against enumeration."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import toy
from course_lib.gated import GRU, LSTM
from course_lib.rnn import RNN
from course_lib.seq2seq import (
    AttentionDecoder,
    Decoder,
    Encoder,
    Readout,
    Seq2Seq,
    alignment,
    alignment_accuracy,
    beam_hypotheses,
    beam_search,
    free_running,
    greedy,
    length_penalty,
    translate,
    translation_batches,
    translation_loss,
)
from course_lib.text import EOS, PAD, SOS, length_mask, pad_batch
from course_lib.train import evaluate, fit

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

    logits = model(data.source, data.source_mask, data.target_in)
    order = [
        TARGETS.index(row[: n - 1].tolist()) for row, n in zip(data.target_out, data.target_mask.sum(1), strict=True)
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
    state, rows = model.start(data.source, data.source_mask), []
    for tokens in data.target_in.unbind(1):
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
    state = model.start(data.source, data.source_mask)
    _, after = model.step(data.target_in[:, 0], state)
    for part in (*state.values(), *after.values()):
        assert len(part) == 3
    rows = torch.tensor([2, 0, 0, 1])
    wanted = model.step(data.target_in[rows, 1], {key: part[rows] for key, part in after.items()})[0]
    torch.testing.assert_close(model.step(data.target_in[:, 1], after)[0][rows][1:2], wanted[1:2], **EXACT)
    moved = model.step(torch.full((4,), 5), {key: part[rows] for key, part in after.items()})[0]
    torch.testing.assert_close(moved, model.step(torch.full((3,), 5), after)[0][rows], **EXACT)


@KINDS
def test_padding_changes_nothing(kind):
    """Fails if the source's padding is read, or the mask does not reach the attention."""
    model, data = small(kind), batch()
    ids = torch.full((3, 9), PAD)
    ids[:, : data.source.shape[1]] = data.source
    mask = F.pad(data.source_mask, (0, 9 - data.source.shape[1]))
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


def test_dropout_acts_in_training_alone():
    """Fails if evaluation is random, or training is not."""
    for kind in ("plain", "fed", "attention"):
        model, data = small(kind, dropout=0.5), batch()
        assert torch.equal(model(*data[:3]), model(*data[:3]))
        model.train()
        assert not torch.equal(model(*data[:3]), model(*data[:3]))
    readout = Readout(Y, nn.Embedding(V, Y), 0.5)
    features = torch.randn(2, Y)
    assert not torch.equal(readout(features), readout(features))


# --- training -----------------------------------------------------------------------


def test_translation_batches_shift_the_target_by_one():
    """Fails if target_in and target_out are not one step apart, a pair is torn, or a pair is missing."""
    seen = []
    for source, source_mask, target_in, target_out, mask in translation_batches(SOURCES, TARGETS, 2):
        assert (target_in[:, 0] == SOS).all()
        for row in range(len(source)):
            n = mask[row].sum()
            assert mask[row, :n].all()
            words = target_out[row, : n - 1].tolist()
            assert target_out[row, n - 1] == EOS
            assert target_in[row, 1:n].tolist() == words
            assert (target_in[row, n:] == PAD).all()
            assert (target_out[row, n:] == PAD).all()
            seen.append((source[row][source_mask[row]].tolist(), words))
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
    masks = [(b.source_mask, b.target_mask) for b in translation_batches(sources, targets, 1, shuffle=False)]
    assert [(s.shape[1], t.shape[1]) for s, t in masks] == [(1, 3), (5, 3), (1, 4), (5, 4)]


@KINDS
def test_loss_is_the_sum_over_real_tokens(kind):
    """Fails if padding counts, means are returned for sums, or the accuracy is that of another step."""
    model, data = small(kind), batch()
    sums = translation_loss(model, data)
    log_probs = model(*data[:3]).log_softmax(-1)
    loss, right = 0.0, 0
    for b, t in itertools.product(range(3), range(data.target_out.shape[1])):
        if data.target_mask[b, t]:
            loss -= log_probs[b, t, data.target_out[b, t]]
            right += int(log_probs[b, t].argmax() == data.target_out[b, t])
    torch.testing.assert_close(sums["loss"], loss, **EXACT)
    assert (sums["count"], sums["accuracy"]) == (10, right)


def test_label_smoothing_acts_in_training_alone():
    """Fails if validation losses are smoothed, or the smoothed loss is not (1 - s) of the truth and s of the mean."""
    model, data = small(), batch()
    assert translation_loss(model, data, label_smoothing=0.3)["loss"] == translation_loss(model, data)["loss"]
    model.train()  # without dropout this changes nothing else
    log_probs = model(*data[:3]).log_softmax(-1)[data.target_mask]
    truth = log_probs.gather(1, data.target_out[data.target_mask].unsqueeze(1)).sum()
    wanted = -0.7 * truth - 0.3 * log_probs.mean(-1).sum()
    torch.testing.assert_close(translation_loss(model, data, label_smoothing=0.3)["loss"], wanted, **EXACT)


@KINDS
def test_free_running_feeds_the_models_own_words(kind):
    """Fails if true words slip in at 0 or own words at 1."""
    model, data = small(kind, seed=3), batch()
    torch.testing.assert_close(free_running(model, *data[:3], teacher_forcing=1.0), model(*data[:3]), **EXACT)
    logits = free_running(model, *data[:3])
    own = torch.cat([data.target_in[:, :1], logits.argmax(-1)[:, :-1]], 1)
    torch.testing.assert_close(model(data.source, data.source_mask, own), logits, **EXACT)
    assert not torch.equal(own, data.target_in)


def test_scheduled_sampling_mixes_by_the_generator():
    """Fails if the share of true words is not p, or the same for a whole batch."""

    class Echo:
        """A model that always predicts 7 and remembers what it was fed."""

        def __init__(self):
            self.fed = []

        def start(self, source, source_mask):
            return {}

        def step(self, tokens, state):
            self.fed.append(tokens)
            return F.one_hot(torch.full_like(tokens, 7), V).double(), state

    model, target_in = Echo(), torch.full((200, 31), 4)
    free_running(model, None, None, target_in, 0.25, torch.Generator().manual_seed(0))
    fed = torch.stack(model.fed, 1)
    assert (fed[:, 0] == 4).all()
    share = (fed[:, 1:] == 4).double()
    assert share.mean().item() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 6000))
    assert 0 < share[:, 0].mean() < 1
    again = Echo()
    free_running(again, None, None, target_in, 0.25, torch.Generator().manual_seed(0))
    assert torch.equal(torch.stack(again.fed, 1), fed)


def test_training_with_own_words_uses_them():
    """Fails if teacher_forcing does not reach the loss, or acts in evaluation mode."""
    model, data = small(seed=3), batch()
    forced = translation_loss(model, data)["loss"]
    assert translation_loss(model, data, teacher_forcing=0.0)["loss"] == forced
    model.train()
    loss = translation_loss(model, data, teacher_forcing=0.0)["loss"]
    wanted = F.cross_entropy(
        free_running(model, *data[:3])[data.target_mask], data.target_out[data.target_mask], reduction="sum"
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
        found = translate(model, sources, max_len=10)
        assert [hypothesis.tokens for hypothesis in found] == list(targets), kind
        assert model.training
        loss = evaluate(model, translation_batches(sources, targets, 4, shuffle=False), translation_loss)
        assert loss["accuracy"] == 1.0


# --- decoding -------------------------------------------------------------------------


class Table:
    """A language of three words with hand-made probabilities; a state counts the steps as a tensor.

    `probs` maps the words so far, as a tuple, to a dict of probabilities; what is missing ends the sentence.
    """

    def __init__(self, probs, vocab_size=7):
        self.probs, self.V = probs, vocab_size

    def start(self, source, source_mask):
        return {"words": torch.zeros(len(source), 0, dtype=torch.int64)}

    def step(self, tokens, state):
        words = torch.cat([state["words"], tokens.unsqueeze(1)], 1)
        p = torch.zeros(len(tokens), self.V, dtype=torch.float64)
        for row, seen in zip(p, words[:, 1:].tolist(), strict=True):
            for token, share in self.probs.get(tuple(seen), {EOS: 1.0}).items():
                row[token] = share
        return p.log(), {"words": words}


# a = 4 looks best at first, yet every sentence that begins with it is improbable.
TRAP = {
    (): {4: 0.5, 5: 0.4, EOS: 0.1},
    (4,): {4: 0.3, 5: 0.3, 6: 0.2, EOS: 0.2},
    (5,): {6: 0.9, EOS: 0.1},
    (5, 6): {EOS: 1.0},
}
ONE = torch.tensor([[4]])


def enumerate_sentences(table, max_len):
    """Every sentence that ends within max_len tokens, with its log-probability, most probable first."""
    found, open_ = [], [((), 0.0)]
    for _ in range(max_len):
        longer = []
        for words, score in open_:
            for token, share in table.get(words, {EOS: 1.0}).items():
                if token == EOS:
                    found.append((list(words), score + math.log(share)))
                else:
                    longer.append(((*words, token), score + math.log(share)))
        open_ = longer
    return sorted(found, key=lambda entry: -entry[1])


def test_beam_search_finds_the_optimum_where_greedy_fails():
    """Fails if the beam does not keep the second beginning: 0.5 * 0.3 is less than 0.4 * 0.9 * 1."""
    best, score = enumerate_sentences(TRAP, 4)[0]
    assert best == [5, 6]
    (found,) = beam_search(Table(TRAP), ONE, beam=2, max_len=4)
    assert found.tokens == best
    assert found.score == pytest.approx(score)
    (taken,) = greedy(Table(TRAP), ONE, max_len=4)
    assert taken.tokens[0] == 4
    assert taken.score < score


def random_table(seed, depth):
    """Random probabilities after every beginning of fewer than `depth` words."""
    generator, table = torch.Generator().manual_seed(seed), {}
    for n in range(depth):
        for words in itertools.product((4, 5, 6), repeat=n):
            p = torch.rand(4, generator=generator, dtype=torch.float64)
            table[words] = dict(zip((EOS, 4, 5, 6), (p / p.sum()).tolist(), strict=True))
    return table


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_is_an_exhaustive_search(seed):
    """Fails if a candidate gets lost or a finished one goes on: beam 100 holds all 40 sentences of up to 3 words."""
    table = random_table(seed, 3)
    wanted = enumerate_sentences(table, 4)
    (found,) = beam_hypotheses(Table(table), ONE, beam=100, max_len=4)
    assert [hypothesis.tokens for hypothesis in found] == [words for words, _ in wanted]
    scores = [hypothesis.score for hypothesis in found]
    assert scores == pytest.approx([score for _, score in wanted])
    assert sum(math.exp(score) for score in scores) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_with_a_penalty_ranks_all_by_their_penalised_scores(seed):
    """Fails if the penalty multiplies, counts other tokens, or is applied before the search is over."""
    table, alpha = random_table(seed, 3), 1.5
    wanted = sorted(enumerate_sentences(table, 4), key=lambda e: -e[1] / ((5 + len(e[0]) + 1) / 6) ** alpha)
    (found,) = beam_hypotheses(Table(table), ONE, beam=100, alpha=alpha, max_len=4)
    assert [hypothesis.tokens for hypothesis in found] == [words for words, _ in wanted]


def test_length_penalty_by_hand():
    """Fails if the exponent or the constants differ: (5 + 13) / 6 = 3, and 3 ** 2 = 9."""
    assert length_penalty(13, 2.0) == 9.0
    assert length_penalty(40, 0.0) == 1.0
    torch.testing.assert_close(length_penalty(torch.tensor([1, 7]), 1.0), torch.tensor([1.0, 2.0]))


def test_length_penalty_changes_the_winner():
    """Fails if alpha has no effect. Short: ln 0.4 = -0.916 over (5 + 2) / 6. Long: ln 0.36 = -1.022 over (5 + 5) / 6.

    With alpha = 1 that is -0.785 against -0.613; with alpha = 0 the short one wins.
    """
    table = {(): {4: 0.4, 5: 0.6}, (5,): {6: 0.6, 5: 0.4}, (5, 6): {6: 1.0}, (5, 6, 6): {6: 1.0}}
    (plain,) = beam_search(Table(table), ONE, beam=3, alpha=0.0)
    (penalised,) = beam_search(Table(table), ONE, beam=3, alpha=1.0)
    assert (plain.tokens, penalised.tokens) == ([4], [5, 6, 6, 6])
    assert plain.score == pytest.approx(math.log(0.4))
    assert penalised.score == pytest.approx(math.log(0.36) / (10 / 6))


def test_length_counts_every_token_up_to_eos():
    """Fails if <pad>, where it may be chosen, does not count, or what stands after <eos> does."""
    table = {(): {PAD: 0.6, EOS: 0.4}, (PAD,): {PAD: 1.0}, (PAD, PAD): {EOS: 1.0}}
    (found,) = beam_hypotheses(Table(table), ONE, beam=2, alpha=1.0, never=())
    assert [hypothesis.tokens for hypothesis in found] == [[PAD, PAD], []]
    assert found[0].score == pytest.approx(math.log(0.6) / (8 / 6))
    assert found[1].score == pytest.approx(math.log(0.4))


def test_a_search_that_fails_leaves_the_model_in_training():
    """Fails if translate forgets the mode on its way out."""
    model = small().train()
    refused("max_len must be at least 1, got 0", translate, model, SOURCES, max_len=0)
    assert model.training


def test_a_finished_hypothesis_keeps_its_place():
    """Fails if finished hypotheses are extended, or leave their place to worse beginnings.

    With a beam of 2, the empty sentence (0.6) takes a place for good; the other place follows 4, then 4 4.
    """
    table = {(): {EOS: 0.6, 4: 0.3, 5: 0.1}, (4,): {4: 0.5, 5: 0.5 - 1e-3, EOS: 1e-3}, (4, 4): {4: 0.9, EOS: 0.1}}
    (found,) = beam_hypotheses(Table(table), ONE, beam=2, max_len=8)
    assert [hypothesis.tokens for hypothesis in found] == [[], [4, 4, 4]]
    assert found[0].score == pytest.approx(math.log(0.6))


def test_max_len_is_honoured_and_counts_eos():
    """Fails if a search goes on for ever or stops a token early."""
    endless = {(): {4: 1.0}, (4,): {4: 1.0}, (4, 4): {4: 1.0}}
    for search in (greedy, beam_search):
        (cut,) = search(Table(endless), ONE, max_len=3)
        assert (cut.tokens, cut.ended) == ([4, 4, 4], False)
        (whole,) = search(Table(endless), ONE, max_len=4)
        assert (whole.tokens, whole.ended) == ([4, 4, 4], True)


def test_a_hypothesis_that_was_cut_comes_last():
    """Fails if an unfinished sentence wins because it still lacks factors."""
    table = {(): {4: 0.9, EOS: 0.1}, (4,): {4: 1.0}, (4, 4): {4: 1.0}}
    (found,) = beam_hypotheses(Table(table), ONE, beam=2, max_len=2)
    assert [(hypothesis.tokens, hypothesis.ended) for hypothesis in found] == [([], True), ([4, 4], False)]


def test_what_is_never_chosen_is_not_chosen_and_the_rest_keeps_its_probability():
    """Fails if a special token is written, or probabilities are made to add up to one again."""
    table = {(): {PAD: 0.5, SOS: 0.2, 4: 0.2, 5: 0.1}}
    for search in (greedy, beam_search):
        (found,) = search(Table(table), ONE)
        assert found.tokens == [4]
        assert found.score == pytest.approx(math.log(0.2))
        assert search(Table(table), ONE, never=(PAD, SOS, 4))[0].tokens == [5]


@KINDS
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_of_one_is_greedy(kind, alpha):
    """Fails if a beam of 1 goes on after <eos>, or keeps a second candidate. Several seeds: some end, some are cut."""
    ended = []
    for seed in range(6):
        model = small(kind, seed=seed)
        model.decoder.readout.bias.data[EOS] += 0.5 * seed
        ids, mask = pad_batch(SOURCES)
        one = greedy(model, ids, mask, max_len=6)
        other = beam_search(model, ids, mask, beam=1, alpha=alpha, max_len=6)
        for a, b in zip(one, other, strict=True):
            assert (a.tokens, a.ended) == (b.tokens, b.ended)
            assert a.score == pytest.approx(b.score * length_penalty(len(b.tokens) + b.ended, alpha))
            ended.append(a.ended)
    assert {True, False} == set(ended)


@KINDS
def test_a_wider_beam_is_at_least_as_probable_here(kind):
    """Fails if scores are not those of the tokens: teacher forcing gives the same log-probability."""
    model = small(kind, "LSTM", seed=1)
    ids, mask = pad_batch(SOURCES)
    for i, found in enumerate(beam_hypotheses(model, ids, mask, beam=5, max_len=7, never=())):
        for hypothesis in found:
            target = [*hypothesis.tokens, EOS] if hypothesis.ended else hypothesis.tokens
            logits = model(torch.tensor([SOURCES[i]]), None, torch.tensor([[SOS, *target[:-1]]]))
            score = logits[0].log_softmax(-1).gather(1, torch.tensor(target).unsqueeze(1)).sum()
            assert hypothesis.score == pytest.approx(score.item())
        assert len({tuple(hypothesis.tokens) for hypothesis in found}) == 5


@KINDS
@pytest.mark.parametrize("search", [greedy, beam_search])
def test_a_batch_gives_what_each_sentence_alone_gives(kind, search):
    """Fails if sentences of a batch, or padding, act on each other; translate also keeps the order."""
    model = small(kind, seed=2)
    model.decoder.readout.bias.data[EOS] += 1.0
    ids, mask = pad_batch(SOURCES)
    together = search(model, ids, mask, max_len=9)
    assert together != []
    alone = [search(model, torch.tensor([source]), None, max_len=9)[0] for source in SOURCES]
    ordered = translate(model, SOURCES, search, batch_size=2, max_len=9)
    for a, b, c in zip(together, alone, ordered, strict=True):
        assert a.tokens == b.tokens == c.tokens
        assert a.score == pytest.approx(b.score)
        if kind == "attention":
            torch.testing.assert_close(a.weights, b.weights, **EXACT)
            torch.testing.assert_close(c.weights, b.weights, **EXACT)
        else:
            assert a.weights is None


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_weights_of_a_search_are_those_of_its_own_translation(search):
    """Fails if the weights of another hypothesis, another step or padding are returned."""
    model = small(seed=4)
    model.decoder.readout.bias.data[EOS] += 0.5
    ids, mask = pad_batch(SOURCES)
    for source, found in zip(SOURCES, search(model, ids, mask, max_len=6), strict=True):
        target_in = torch.tensor([[SOS, *found.tokens]])
        wanted = alignment(model, torch.tensor([source]), None, target_in)[0, : len(found.tokens)]
        torch.testing.assert_close(found.weights, wanted, **EXACT)


# --- alignment --------------------------------------------------------------------------


def test_alignment_equals_the_weights_by_hand():
    """Fails if rows are shifted by a step or padding has weight."""
    model, data = small("attention", "LSTM"), batch()
    weights = alignment(model, data.source, data.source_mask, data.target_in)
    for b in range(3):
        source = data.source[b][data.source_mask[b]].tolist()
        _, wanted = by_hand(model, "attention", "LSTM", source, data.target_in[b].tolist())
        torch.testing.assert_close(weights[b, :, : len(source)], torch.stack(wanted), **EXACT)
        assert (weights[b, :, len(source) :] == 0).all()


def test_alignment_accuracy_of_the_toy_languages_truth():
    """Fails if rows and columns are swapped: the truth as weights scores 1, its reverse less."""
    _, target, truth = toy.translation_pairs(1, seed=32)[0]
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
    refused(r"source has shape \(3,\), wanted \(B, length\)", start, torch.tensor([4, 5, 6]))
    refused(r"source has shape \(0, 3\)", start, torch.zeros(0, 3, dtype=torch.int64))
    refused(r"source has shape \(2, 0\)", start, torch.zeros(2, 0, dtype=torch.int64))
    refused("source is torch.float32, wanted int64 ids", start, torch.ones(2, 3))
    refused("source must be ids from 0 to 10, got 4 to 11", start, torch.tensor([[4, 11]]))
    refused("source must be ids from 0 to 10, got -1 to 4", start, torch.tensor([[4, -1]]))
    refused("source is on meta, the model on cpu", start, ids.to("meta"))
    refused(
        r"mask must be boolean of the source's shape \(2, 2\), got torch.bool \(2, 3\)", start, ids, length_mask([3, 2])
    )
    refused("got torch.int64", start, ids, length_mask([2, 1]).long())
    refused("mask has a row without a real token", start, ids, length_mask([2, 0]))
    refused("mask has padding before a real token", start, ids, ~length_mask([1, 1], 2))


def test_targets_that_cannot_be_written_are_refused():
    """Fails if a bad target ends in an error of torch, or in numbers."""
    ids = torch.tensor([[4, 5], [6, 7]])
    for kind in ("plain", "attention"):
        model = small(kind)
        refused("target_in must be ids from 0 to 8, got 2 to 9", model, ids, None, torch.tensor([[2, 9], [2, 4]]))
        refused(r"target_in has shape \(2,\)", model, ids, None, torch.tensor([2, 2]))
        refused("target_in holds 1 sentences, the state 2", model, ids, None, torch.tensor([[2, 4]]))
        refused("target_in is torch.float64", model, ids, None, torch.ones(2, 2).double())
        refused(r"tokens have shape \(2, 1\), wanted \(B,\)", model.step, torch.ones(2, 1).long(), model.start(ids))
    refused(r"target_in has shape \(2,\), wanted \(B, T\)", free_running, small(), ids, None, torch.tensor([2, 2]))


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
    refused("vocab_size must be at least 1, got 0", Encoder, 0, two)
    refused("pool must be 'last' or 'mean', got 'first'", Encoder, VS, two, pool="first")
    refused("vocab_size must be at least 1, got 0", Decoder, 0, GRU(Y, U), 5)
    decoder = Decoder(V, GRU(Y, U), 5)
    refused(r"context has shape \(2, 6\), wanted \(B, 5\)", decoder.start, torch.zeros(2, 3, 6), torch.zeros(2, 6))
    attentive = AttentionDecoder(V, GRU(Y + 5, U), 5, A)
    refused(r"keys have shape \(2, 3, 6\)", attentive.start, torch.zeros(2, 3, 6), torch.zeros(2, 5))


def test_halves_of_another_dtype_or_device_are_refused():
    """Fails if float32 states meet a float64 decoder, or two devices meet, with an error from inside torch."""
    model, target = small(), torch.tensor([[SOS]])
    model.encoder.float()
    refused("the context is torch.float32, the decoder's weights are torch.float64", model, target, None, target)
    model.encoder.double().to("meta")
    refused("source is on cpu, the model on meta", model, target, None, target)
    context = torch.zeros(2, 2 * D, dtype=torch.float64, device="meta")
    refused("the context is on meta, the decoder on cpu", model.decoder.start, torch.zeros(2, 3, 2 * D), context)


@pytest.mark.parametrize("search", [greedy, beam_search, beam_hypotheses])
def test_searches_that_cannot_end_are_refused(search):
    """Fails if a search returns nothing, or everything, in silence."""
    model, ids = small(), torch.tensor([[4, 5]])
    refused("max_len must be at least 1, got 0", search, model, ids, max_len=0)
    refused("<eos> may not be among the ids that are never chosen", search, model, ids, never=(PAD, EOS))
    refused("never holds 9, ids go from 0 to 8", search, model, ids, never=(9,))
    refused(r"source has shape \(2,\), wanted \(B, S\)", search, model, torch.tensor([4, 5]))
    refused(r"source has shape \(0, 4\)", search, model, torch.zeros(0, 4).long())


def test_beam_and_alpha_are_checked():
    """Fails if an empty beam or a penalty that favours short sentences passes."""
    model, ids = small(), torch.tensor([[4, 5]])
    refused("beam must be at least 1, got 0", beam_search, model, ids, beam=0)
    refused("alpha must be at least 0, got -1", beam_search, model, ids, alpha=-1)
    refused("alpha must be at least 0, got nan", beam_search, model, ids, alpha=math.nan)


def test_bad_training_arguments_are_refused():
    """Fails if a probability outside its range, or pairs that are none, pass."""
    model, data = small(), batch()
    refused(r"label_smoothing must be from 0 to below 1, got 1", translation_loss, model, data, label_smoothing=1)
    refused(
        r"teacher_forcing is a probability from 0 to 1, got 1.5", translation_loss, model, data, teacher_forcing=1.5
    )
    refused(r"teacher_forcing is a probability from 0 to 1, got -0.1", free_running, model, *data[:3], -0.1)
    refused("got 2 sources but 1 targets", translation_batches, [[4], [5]], [[4]], 2)
    refused("a source sentence is empty", translation_batches, [[4], []], [[4], [5]], 2)
    refused("nothing to batch", translation_batches, [], [], 2)
    refused("batch_size must be at least 1, got 0", translation_batches, [[4]], [[4]], 0)
    refused("nothing to batch", translate, model, [])


def test_alignments_that_cannot_be_scored_are_refused():
    """Fails if a model without attention, or a truth of another sentence, gets a score."""
    refused(
        "a Decoder has no attention weights", alignment, small("plain"), torch.tensor([[4]]), None, torch.tensor([[2]])
    )
    refused(r"got \(3, 2\) and 2", alignment_accuracy, torch.zeros(3, 2), [0, 1])
    refused(r"got \(0, 2\) and 0", alignment_accuracy, torch.zeros(0, 2), [])
    refused("positions must be from 0 to 1, got 0 to 2", alignment_accuracy, torch.zeros(2, 2), [0, 2])
