"""BERT: its tasks on many draws, the network against torch.nn's, its heads and losses by hand."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import functional
from course_lib.attention import attention_backend, record_attention
from course_lib.bert import (
    BERT,
    IGNORE,
    BERTConfig,
    BERTForPreTraining,
    BERTForSequenceClassification,
    BERTForTokenClassification,
    join_pair,
    mask_tokens,
    masked_lm_loss,
    pretraining_loss,
    sentence_pairs,
)
from course_lib.text import length_mask
from course_lib.train import classification_loss, set_seed, train_epoch
from course_lib.transformer import init_weights
from course_lib.utils import number_of_parameters

EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64, where only the order of sums differs
B, T, H, K, N, V, HIDDEN, LONGEST = 3, 7, 3, 4, 2, 11, 20, 9
D = H * K
EPS = 0.05  # so large that a norm with another one is seen
SIZES = {"max_len": LONGEST, "d_model": D, "num_layers": N, "num_heads": H, "dim_feedforward": HIDDEN}
CONFIG = BERTConfig(V, **SIZES, dropout=0.0, layer_norm_eps=EPS)
REAL = length_mask([4, 7, 2], T)
CLS, SEP, BLANK = 1, 2, 3

every_backend = pytest.mark.parametrize("backend", ["sdpa", "math"])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    """Normal numbers in float64 that take gradients."""
    return torch.randn(shape, generator=seeded(seed + sum(shape)), dtype=torch.float64).requires_grad_()


def filled(module, seed=0):
    """The module in float64, without a parameter that is zero or one: norms and biases take part."""
    generator = seeded(seed)
    with torch.no_grad():
        for name, parameter in module.double().named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * noise if "norm" in name and "weight" in name else 0.5 * noise)
    return module


IDS = torch.randint(V, (B, T), generator=seeded(1))
SEGMENT_IDS = torch.tensor([[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0, 0]])
CHOSEN = torch.tensor([[0, 1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 0]]).bool()
TARGETS = torch.full((B, T), IGNORE).masked_scatter(CHOSEN, torch.tensor([5, 4, 9, 6, 8]))


def gradients(out, module):
    """By name, under an arbitrary weighting of the output; None where the output does not depend on it."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(out, parameters, draw(*out.shape, seed=9).detach(), allow_unused=True)
    return dict(zip(names, found, strict=True))


def normed(x, norm):
    """LayerNorm with the parameters of one, by torch's function and with the configuration's epsilon."""
    return F.layer_norm(x, (D,), norm.weight, norm.bias, EPS)


# --- mask_tokens ----------------------------------------------------------------


def within(count, n, p):
    """Whether a count of n draws of probability p lies within five standard deviations of n p."""
    return abs(count - n * p) <= 5 * math.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("mask_prob", [0.15, 0.4])
def test_mask_tokens_hides_the_shares_that_the_paper_gives(mask_prob):
    """Fails if a share is another one, or what becomes of a token depends on the draw that chose it.

    All tokens are 7, the mask is 3, random tokens come from 5, ..., 14: a random token is 7 in one case of ten.
    """
    ids = torch.full((400, 500), 7)
    inputs, targets = mask_tokens(
        ids, ids > 0, vocab_size=15, mask_id=3, generator=seeded(), mask_prob=mask_prob, first_regular_id=5
    )
    chosen = targets != IGNORE
    n = chosen.sum().item()
    assert within(n, ids.numel(), mask_prob)
    assert within((inputs[chosen] == 3).sum().item(), n, 0.8)
    assert within((inputs[chosen] == 7).sum().item(), n, 0.1 + 0.1 / 10)
    for token in (5, 6, 8, 9, 10, 11, 12, 13, 14):
        assert within((inputs[chosen] == token).sum().item(), n, 0.1 / 10), token
    assert set(inputs[chosen].unique().tolist()) == {3, *range(5, 15)}
    assert within(chosen.any(0).sum().item(), 500, 1 - (1 - mask_prob) ** 400), "no column is left out"


def test_mask_tokens_targets_and_places():
    """Fails if a place is chosen that may not be, a target is not the token, or an input changes where none is."""
    ids = torch.randint(4, 60, (50, 40), generator=seeded(1))
    before = ids.clone()
    maskable = torch.rand(ids.shape, generator=seeded(2)) < 0.6
    inputs, targets = mask_tokens(ids, maskable, 60, mask_id=3, generator=seeded(3), mask_prob=0.5)
    chosen = targets != IGNORE
    assert torch.equal(ids, before), "the tokens given were changed"
    assert inputs.dtype == targets.dtype == torch.int64
    assert not chosen[~maskable].any()
    assert within(chosen.sum().item(), maskable.sum().item(), 0.5)
    assert torch.equal(targets[chosen], ids[chosen])
    assert torch.equal(inputs[~chosen], ids[~chosen])
    assert (inputs[chosen] != ids[chosen]).any()


def test_mask_tokens_draws_regular_tokens():
    """Fails if a special token is drawn, or the last of the vocabulary never is: at V - 1 only one is left."""
    ids = torch.full((100, 100), 7)
    inputs, targets = mask_tokens(
        ids, ids > 0, vocab_size=9, mask_id=3, generator=seeded(), mask_prob=1.0, first_regular_id=8
    )
    assert (targets == 7).all(), "a probability of 1 chooses all"
    assert set(inputs.unique().tolist()) == {3, 7, 8}
    inputs, _ = mask_tokens(ids, ids > 0, vocab_size=9, mask_id=3, generator=seeded(), mask_prob=1.0)
    assert set(inputs.unique().tolist()) == set(range(9)), "first_regular_id is 0 if it is not given"


def test_mask_tokens_depends_on_the_generator_alone():
    """Fails if a draw does not come from the generator, or the generator is ignored."""
    ids = torch.randint(4, 60, (20, 30), generator=seeded(1))

    def masked(generator):
        return torch.stack(mask_tokens(ids, ids > 0, 60, 3, generator))

    torch.manual_seed(5)
    first = masked(seeded(3))
    torch.manual_seed(6)
    assert torch.equal(masked(seeded(3)), first)
    assert not torch.equal(masked(seeded(4)), first)
    torch.manual_seed(3)
    assert torch.equal(masked(None), first), "without a generator torch's own is used"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"maskable": torch.ones(2, 3)}, r"maskable must be torch.bool, got torch.float32"),
        ({"maskable": torch.ones(3).bool()}, r"maskable must be a tensor \(2, 3\), got one of shape \(3,\)"),
        ({"ids": torch.full((2, 3), 9)}, r"ids must be from 0 to 8, got 9 to 9"),
        ({"ids": torch.full((2, 3), -1)}, r"ids must be from 0 to 8, got -1 to -1"),
        ({"ids": torch.full((2, 3), 7.0)}, r"ids must be torch.int64, got torch.float32"),
        ({"mask_prob": 0}, r"mask_prob must be above 0 and at most 1, got 0"),
        ({"mask_prob": 1.5}, r"mask_prob must be above 0 and at most 1, got 1.5"),
        ({"mask_prob": math.nan}, r"mask_prob must be above 0 and at most 1, got nan"),
        ({"mask_id": 9}, r"mask_id=9 and first_regular_id=0 must be ids below 9"),
        ({"mask_id": -1}, r"mask_id must be a whole number of at least 0, got -1"),
        ({"mask_id": 3.5}, r"mask_id must be a whole number of at least 0, got 3.5"),
        ({"first_regular_id": 9}, r"mask_id=3 and first_regular_id=9 must be ids below 9"),
        ({"first_regular_id": -1}, r"first_regular_id must be a whole number of at least 0, got -1"),
    ],
)
def test_mask_tokens_names_what_is_wrong(changed, message):
    """Fails if bad input passes: a mask of another shape would be broadcast, a probability of 0 gives no loss."""
    given = {
        "ids": torch.full((2, 3), 7),
        "maskable": torch.ones(2, 3).bool(),
        "vocab_size": 9,
        "mask_id": 3,
    } | changed
    with pytest.raises(ValueError, match=message):
        mask_tokens(**given)


# --- pairs ----------------------------------------------------------------------


def numbered(*sizes):
    """Documents whose sentences are (document, place)."""
    return [[(number, place) for place in range(size)] for number, size in enumerate(sizes)]


@pytest.mark.parametrize("sizes", [(400, 300), (200, 1, 250, 3, 150)])
def test_sentence_pairs_are_neighbours_and_strangers(sizes):
    """Fails if a stranger comes from the same document, a follower is another sentence, or the shares are not half.

    Every sentence with a next one comes first once, in order.
    """
    pairs = sentence_pairs(numbered(*sizes), seeded())
    assert [first for first, _, _ in pairs] == [(d, s) for d, size in enumerate(sizes) for s in range(size - 1)]
    for (document, place), second, follows in pairs:
        if follows:
            assert second == (document, place + 1)
        else:
            assert second[0] != document
    assert all(isinstance(follows, bool) for *_, follows in pairs)
    assert within(sum(follows for *_, follows in pairs), len(pairs), 0.5)


def test_strangers_come_from_all_other_documents_and_all_their_sentences():
    """Fails if the next document is always taken, its first sentence, or one is left out.

    A thousand sentences in document 0, about 500 strangers from four documents of three sentences each. The share of
    each document is within five standard deviations of a quarter, that of each sentence of a twelfth.
    """
    pairs = sentence_pairs(numbered(1001, 3, 3, 3, 3), seeded(1))
    strangers = [second for (document, _), second, follows in pairs if document == 0 and not follows]
    for document in range(1, 5):
        assert within(sum(d == document for d, _ in strangers), len(strangers), 1 / 4)
        for place in range(3):
            assert within(strangers.count((document, place)), len(strangers), 1 / 12)


def test_sentence_pairs_depend_on_the_generator_and_skip_empty_documents():
    """Fails if a draw comes from elsewhere, or an empty document is drawn from (an error) or changes the others."""
    torch.manual_seed(0)
    first = sentence_pairs(numbered(30, 20), seeded(2))
    torch.manual_seed(1)
    assert sentence_pairs(numbered(30, 20), seeded(2)) == first
    assert sentence_pairs(numbered(30, 20), seeded(3)) != first
    one, other = numbered(30, 20)
    assert sentence_pairs([[], one, [], other, []], seeded(2)) == first


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((), r"wanted two documents, one of them with two sentences, got 0 of sizes \[\]"),
        ((5,), r"got 1 of sizes \[5\]"),
        ((5, 0), r"got 1 of sizes \[5\]"),
        ((1, 1, 1), r"got 3 of sizes \[1, 1, 1\]"),
    ],
)
def test_documents_that_give_no_pairs_are_refused(sizes, message):
    """Fails if a draw from nothing gives an error of torch, or an empty list comes back."""
    with pytest.raises(ValueError, match=message):
        sentence_pairs(numbered(*sizes), seeded())


@pytest.mark.parametrize(
    ("first", "second", "max_len", "ids", "segments"),
    [
        ([7, 8, 9], [4, 5], None, [1, 7, 8, 9, 2, 4, 5, 2], [0, 0, 0, 0, 0, 1, 1, 1]),
        ([7, 8, 9], None, None, [1, 7, 8, 9, 2], [0, 0, 0, 0, 0]),
        ([7, 8, 9], [4, 5], 8, [1, 7, 8, 9, 2, 4, 5, 2], [0, 0, 0, 0, 0, 1, 1, 1]),
        ([7, 8, 9], [4, 5], 7, [1, 7, 8, 2, 4, 5, 2], [0, 0, 0, 0, 1, 1, 1]),
        ([7, 8, 9], [4], 6, [1, 7, 8, 2, 4, 2], [0, 0, 0, 0, 1, 1]),
        ([7], [4, 5, 6, 8], 6, [1, 7, 2, 4, 5, 2], [0, 0, 0, 1, 1, 1]),
        ([7, 8, 9], [4, 5, 6, 10], 5, [1, 7, 2, 4, 2], [0, 0, 0, 1, 1]),
        ([7, 8, 9], None, 4, [1, 7, 8, 2], [0, 0, 0, 0]),
        ([7, 8, 9], None, 3, [1, 7, 2], [0, 0, 0]),
    ],
)
def test_join_pair_worked_by_hand(first, second, max_len, ids, segments):
    """Fails if a special token or a segment stands elsewhere, or the shorter part, or the front of one, is cut."""
    before = list(first), None if second is None else list(second)
    assert join_pair(first, second, cls_id=CLS, sep_id=SEP, max_len=max_len) == (ids, segments)
    assert (first, second) == before, "the lists given were changed"


@pytest.mark.parametrize(("second", "max_len", "parts"), [([4], 4, 2), (None, 2, 1)])
def test_join_pair_needs_room_for_a_token_of_each(second, max_len, parts):
    """Fails if a part vanishes without a word."""
    with pytest.raises(ValueError, match=rf"max_len {max_len} leaves no room for {parts} parts"):
        join_pair([7], second, CLS, SEP, max_len)


# --- the network ----------------------------------------------------------------


@pytest.mark.parametrize("segments", [None, SEGMENT_IDS])
def test_the_embedding_is_the_sum_of_three_tables_normalised(segments):
    """Fails if a table is left out or scaled, places do not count from 0, or epsilon is torch's."""
    embedding = filled(BERT(CONFIG)).embedding
    rows = embedding.token.weight[IDS] + embedding.position.weight[:T]
    rows = rows + embedding.segment.weight[torch.zeros_like(IDS) if segments is None else segments]
    torch.testing.assert_close(embedding(IDS, segments), normed(rows, embedding.norm), **EXACT)


def torchs(model):
    """torch.nn's encoder with the model's weights."""
    pre = model.config.residual == "pre-ln"
    layer = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, F.gelu, layer_norm_eps=EPS, batch_first=True, norm_first=pre, dtype=torch.float64
    )
    norm = nn.LayerNorm(D, eps=EPS) if pre else None
    reference = nn.TransformerEncoder(layer, N, norm, enable_nested_tensor=False).double()
    reference.load_state_dict(model.encoder.state_dict())
    return reference


@every_backend
@pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
@pytest.mark.parametrize("mask", [None, REAL], ids=["all real", "padding"])
def test_bert_is_torchs_encoder(mask, residual, backend):
    """Fails if a norm, its epsilon, the activation, a residual or the mask differs: outputs and all gradients."""
    model = filled(BERT(dataclasses.replace(CONFIG, residual=residual), pooler=False))
    reference = torchs(model)
    wanted = reference(model.embedding(IDS, SEGMENT_IDS), src_key_padding_mask=None if mask is None else ~mask)
    wanted = wanted if mask is None else wanted.masked_fill(~mask[..., None], 0.0)
    with attention_backend(backend):
        out = model(IDS, mask, SEGMENT_IDS)
    torch.testing.assert_close(out, wanted, **EXACT)
    found = gradients(out, model)
    both = nn.ModuleDict({"embedding": model.embedding, "encoder": reference})
    torch.testing.assert_close(found, gradients(wanted, both), **EXACT)
    assert all(gradient.abs().max() > 1e-6 for gradient in found.values())


def test_segments_and_places_matter_and_follow_the_ids():
    """Fails if the segments or the places are ignored: the same token twice would get the same vector."""
    model, ids = filled(BERT(CONFIG)), torch.full((1, 5), 7)
    out = model(ids)[0]
    assert (out[:1] - out[1:]).abs().amax(-1).min() > 1e-3, "no two places alike"
    torch.testing.assert_close(model(ids, None, torch.zeros_like(ids))[0], out, rtol=0, atol=0)
    other = model(ids, None, torch.tensor([[0, 0, 0, 1, 1]]))[0]
    assert (other - out).abs().amax(-1).min() > 1e-3, "every vector sees the segments"


@pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
def test_hidden_are_the_embeddings_and_each_layers_output(residual):
    """Fails if a layer is left out or doubled, or what `forward` computes is something else."""
    model = filled(BERT(dataclasses.replace(CONFIG, residual=residual)))
    found = model.hidden(IDS, REAL, SEGMENT_IDS)
    assert [x.shape for x in found] == [(B, T, D)] * (N + 1)
    torch.testing.assert_close(found[0], model.embedding(IDS, SEGMENT_IDS), **EXACT)
    for layer, before, after in zip(torchs(model).layers, found[:-1], found[1:], strict=True):
        wanted = layer(before, src_key_padding_mask=~REAL)
        torch.testing.assert_close(after[REAL], wanted[REAL], **EXACT)
    last = found[-1] if residual == "post-ln" else normed(found[-1], model.encoder.norm)
    torch.testing.assert_close(model(IDS, REAL, SEGMENT_IDS)[REAL], last[REAL], **EXACT)
    torch.testing.assert_close(model.hidden(IDS)[-1], model.hidden(IDS, torch.ones_like(REAL))[-1], **EXACT)


def test_attention_maps_are_those_of_torchs_attention():
    """Fails if padding is looked at, segments are ignored, or a layer reads something else: torch is the reference."""
    model = filled(BERT(CONFIG))
    with record_attention(model) as found:
        model(IDS, REAL, SEGMENT_IDS)
    assert [weights.shape for weights in found.values()] == [(B, H, T, T)] * N
    hidden = model.hidden(IDS, REAL, SEGMENT_IDS)
    for layer, x, weights in zip(torchs(model).layers, hidden, found.values(), strict=False):
        _, wanted = layer.self_attn(x, x, x, key_padding_mask=~REAL, average_attn_weights=False)
        torch.testing.assert_close(weights, wanted, **EXACT)
        assert (weights.masked_select(~REAL[:, None, None]) == 0).all()


def test_a_mask_shapes_attention_beside_the_padding():
    """Fails if a mask is ignored, taken for padding, or takes the place of `real`: a band of neighbours, each head."""
    model = filled(BERT(CONFIG))
    band = (torch.arange(T)[:, None] - torch.arange(T)).abs() <= 1
    for network in (
        model,
        BERTForPreTraining(model),
        BERTForSequenceClassification(model),
        BERTForTokenClassification(model, 4),
    ):
        with record_attention(network) as maps:
            network.double()(IDS, REAL, SEGMENT_IDS, mask=band)
        for weights in maps.values():
            allowed = (band & REAL[:, None, :])[:, None].expand(B, H, T, T)
            assert (weights[~allowed] == 0).all()
            assert (weights[allowed] > 0).all()


def test_pool_by_hand():
    """Fails if another token than the first is taken, the tanh is missing, or the layer is another."""
    model, x = filled(BERT(CONFIG)), draw(B, T, D).detach()
    weight, bias = model.pooler.weight.tolist(), model.pooler.bias.tolist()
    for b, first in enumerate(x[:, 0].tolist()):
        sums = [bias[i] + sum(w * value for w, value in zip(weight[i], first, strict=True)) for i in range(D)]
        wanted = torch.tensor([math.tanh(value) for value in sums], dtype=torch.float64)
        torch.testing.assert_close(model.pool(x)[b].detach(), wanted, **EXACT)


def test_the_start_is_berts():
    """Fails if a weight or a table is not drawn from N(0, 0.02^2), a bias is not 0, a norm not 1 and 0.

    The spread of n normal numbers is within 0.02 (1 +- 5 / sqrt(2 n)), their mean within 5 * 0.02 / sqrt(n).
    """
    set_seed(0)
    config = BERTConfig(300, 100, 48, 2, 4, 96, layer_norm_eps=EPS)
    model = BERT(config)
    heads = BERTForPreTraining(model), BERTForSequenceClassification(model, 5), BERTForTokenClassification(model, 6)
    for head in heads:
        for name, parameter in head.named_parameters():
            x = parameter.detach()
            if "norm" in name and name.endswith("weight"):
                assert (x == 1).all(), name
            elif name.endswith("bias"):
                assert (x == 0).all(), name
            else:
                assert abs(x.std().item() / 0.02 - 1) < 5 / math.sqrt(2 * (x.numel() - 1)), name
                assert abs(x.mean().item()) < 5 * 0.02 / math.sqrt(x.numel()), name
        assert {part.eps for part in head.modules() if isinstance(part, nn.LayerNorm)} == {EPS}


@pytest.mark.parametrize(("name", "size"), [("bert-base-uncased", 109_482_240), ("bert-large-uncased", 335_141_888)])
def test_published_models_have_as_many_parameters_as_published(name, size):
    """Fails if a size, a bias or a norm is another: the numbers are those of the published checkpoints."""
    with torch.device("meta"):
        model = BERT(BERTConfig.from_name(name))
    assert number_of_parameters(model) == size
    assert (model.config.layer_norm_eps, model.config.dropout, model.config.residual) == (1e-12, 0.1, "post-ln")
    assert model.config.num_heads * 64 == model.config.d_model, "heads of width 64, which no count of parameters shows"


@pytest.mark.parametrize("attention_dropout", [None, 0.2])
def test_dropout_stands_where_bert_has_it(monkeypatch, attention_dropout):
    """Fails if something is dropped that BERT does not drop (the hidden layer), is not, twice, or in evaluation."""
    asked = []

    def record(x, p, training=True):
        asked.append((tuple(x.shape), p if training else 0.0))
        return x

    monkeypatch.setattr(functional, "dropout", record)  # what every Dropout calls
    model = filled(BERT(dataclasses.replace(CONFIG, dropout=0.3, attention_dropout=attention_dropout)))
    layer = [((B, T, D), 0.3), ((B, T, HIDDEN), 0.0), ((B, T, D), 0.3)]  # attention, hidden layer, feed-forward
    trunk = [((B, T, D), 0.3), *layer * N]
    for p in (None, 0.0, 0.7):
        heads = {
            (B, D): (BERTForSequenceClassification(model, 5, p), BERTForSequenceClassification(model, 5, p, "mean")),
            (B, T, D): (BERTForTokenClassification(model, 5, p),),
        }
        for shape, networks in heads.items():
            for head in networks:
                asked.clear()
                head.double()(IDS, REAL, SEGMENT_IDS)
                assert asked == [*trunk, (shape, 0.3 if p is None else p)]
    asked.clear()
    model.eval()(IDS, REAL)
    assert {p for _, p in asked} <= {0.0}
    assert {layer.self_attn.dropout.p for layer in model.encoder.layers} == {attention_dropout or 0.3}


def test_what_is_dropped_is_what_goes_on(monkeypatch):
    """Fails if the result of a dropout is thrown away: here "dropping" multiplies by 2."""
    model = filled(BERT(dataclasses.replace(CONFIG, dropout=0.3)))
    trunk = model.eval()(IDS, REAL)
    monkeypatch.setattr(functional, "dropout", lambda x, p, training=True: 2 * x if training and p > 0 else x)
    model.train()
    rows = model.embedding.token.weight[IDS] + model.embedding.position.weight[:T] + model.embedding.segment.weight[0]
    torch.testing.assert_close(model.embedding(IDS), 2 * normed(rows, model.embedding.norm), **EXACT)
    for pool in ("cls", "mean"):
        head = filled(BERTForSequenceClassification(model, 5, pool=pool))
        head.bert.eval()
        trunk = head.bert(IDS, REAL)
        pooled = head.bert.pool(trunk) if pool == "cls" else trunk.sum(1) / REAL.sum(1, keepdim=True)
        torch.testing.assert_close(head(IDS, REAL), head.classifier(2 * pooled), **EXACT)
    head = filled(BERTForTokenClassification(model, 5))
    head.bert.eval()
    torch.testing.assert_close(head(IDS, REAL), head.classifier(2 * head.bert(IDS, REAL)), **EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_backend
def test_half_precision_with_padding_has_gradients(dtype, backend):
    """Fails if padding gives a gradient that is not a number: rows of one real token are the hardest."""
    model = BERTForSequenceClassification(BERT(dataclasses.replace(CONFIG, layer_norm_eps=1e-12)), 2).to(dtype)
    real = length_mask([1, 7, 2], T)
    with attention_backend(backend):
        loss = F.cross_entropy(model(IDS, real, SEGMENT_IDS).float(), torch.tensor([0, 1, 1]))
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# --- heads ----------------------------------------------------------------------


def token_logits_by_hand(x, model, table):
    """The formula of `BERTForPreTraining`, its output layer apart."""
    return normed(F.gelu(x @ model.transform.weight.T + model.transform.bias), model.norm) @ table.T + model.bias


@every_backend
def test_the_heads_of_pre_training_by_hand(backend):
    """Fails if the layer before the table, its norm or activation, the table or the pair's pooling is another."""
    model = filled(BERTForPreTraining(BERT(CONFIG)))
    x = model.bert(IDS, REAL, SEGMENT_IDS)
    with attention_backend(backend):
        token_logits, pair_logits = model(IDS, REAL, SEGMENT_IDS)
    wanted = token_logits_by_hand(x, model, model.bert.embedding.token.weight)
    torch.testing.assert_close(token_logits, wanted, **EXACT)
    pooled = torch.tanh(x[:, 0] @ model.bert.pooler.weight.T + model.bert.pooler.bias)
    torch.testing.assert_close(pair_logits, pooled @ model.pair.weight.T + model.pair.bias, **EXACT)
    assert (token_logits.shape, pair_logits.shape) == ((B, T, V), (B, 2))
    torch.testing.assert_close(model.token_logits(x[1, 2]), wanted[1, 2], **EXACT)
    alone = BERTForPreTraining(BERT(CONFIG, pooler=False))
    assert alone(IDS)[1] is None
    assert not any("pooler" in name or "pair" in name for name, _ in alone.named_parameters())


def test_positions_give_the_same_logits_there():
    """Fails if the places are taken in another order or from another tensor: logits and gradients."""
    model = filled(BERTForPreTraining(BERT(CONFIG)))
    some, pair_logits = model(IDS, REAL, SEGMENT_IDS, CHOSEN)
    full, wanted_pairs = model(IDS, REAL, SEGMENT_IDS)
    assert some.shape == (5, V)
    torch.testing.assert_close(some, full[CHOSEN], **EXACT)
    torch.testing.assert_close(pair_logits, wanted_pairs, **EXACT)
    torch.testing.assert_close(gradients(some, model), gradients(full[CHOSEN], model), **EXACT)


def test_the_table_is_the_output_layer_too():
    """Fails if the output layer is a table of its own: the gradient is the sum of those of both uses."""
    model = filled(BERTForPreTraining(BERT(CONFIG)))
    table = model.bert.embedding.token.weight
    below, above = (table.detach().clone().requires_grad_() for _ in range(2))
    x = torch.func.functional_call(model.bert, {"embedding.token.weight": below}, (IDS, REAL))
    weighting = draw(B, T, V, seed=5).detach()
    parts = torch.autograd.grad(token_logits_by_hand(x, model, above), (below, above), weighting)
    (found,) = torch.autograd.grad(model(IDS, REAL)[0], table, weighting)
    torch.testing.assert_close(found, sum(parts), **EXACT)
    assert all(part.abs().max() > 1e-3 for part in parts)
    unused = next(token for token in range(V) if not (IDS == token).any())
    before = model(IDS, REAL)[0].detach()
    with torch.no_grad():
        table[unused] += 1.0
    changed = (model(IDS, REAL)[0] - before).abs().amax((0, 1)) > 1e-6
    assert changed.nonzero().flatten().tolist() == [unused], "a token that was not read changes its own logit alone"


@every_backend
@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("mask", [None, REAL], ids=["all real", "padding"])
def test_the_classifier_of_texts_by_hand(mask, pool, backend):
    """Fails if padding is averaged, the pool is another, or the segments do not arrive: each text alone."""
    model = filled(BERTForSequenceClassification(BERT(CONFIG, pooler=pool == "cls"), 5, pool=pool))
    with attention_backend(backend):
        out = model(IDS, mask, SEGMENT_IDS)
    assert out.shape == (B, 5)
    for b, n in enumerate([T] * B if mask is None else REAL.sum(1).tolist()):
        x = model.bert(IDS[b : b + 1, :n], None, SEGMENT_IDS[b : b + 1, :n])
        x = model.bert.pool(x)[0] if pool == "cls" else sum(x[0]) / n
        torch.testing.assert_close(out[b], model.classifier.weight @ x + model.classifier.bias, **EXACT)


@every_backend
def test_the_classifier_of_tokens_by_hand(backend):
    """Fails if a token gets another's vector, or the segments do not arrive: each text alone."""
    model = filled(BERTForTokenClassification(BERT(CONFIG, pooler=False), 5))
    with attention_backend(backend):
        out = model(IDS, REAL, SEGMENT_IDS)
    assert out.shape == (B, T, 5)
    for b, n in enumerate(REAL.sum(1).tolist()):
        x = model.bert(IDS[b : b + 1, :n], None, SEGMENT_IDS[b : b + 1, :n])[0]
        torch.testing.assert_close(out[b, :n], x @ model.classifier.weight.T + model.classifier.bias, **EXACT)


def test_classifiers_have_two_classes_if_none_are_given():
    """Fails if the default is another."""
    assert BERTForSequenceClassification(BERT(CONFIG))(IDS).shape == (B, 2)


@pytest.mark.parametrize(("pool", "pooler"), [("cls", True), ("mean", True), ("mean", False)])
def test_the_classifier_of_texts_comes_back_with_its_pool(tmp_path, pool, pooler):
    """Fails if a classifier that was saved pools otherwise when it is read, or cannot be read."""
    model = filled(BERTForSequenceClassification(BERT(CONFIG, pooler), 3, pool=pool)).float().eval()
    model.save_pretrained(tmp_path)
    again = BERTForSequenceClassification.from_pretrained(tmp_path)
    assert again.pool == pool
    torch.testing.assert_close(again(IDS, REAL), model(IDS, REAL), rtol=0, atol=0)


# --- losses ---------------------------------------------------------------------


def test_masked_lm_loss_by_hand():
    """Fails if a place that was not chosen counts, padding is read, or a sum is a mean."""
    model = filled(BERTForPreTraining(BERT(CONFIG, pooler=False)))
    found = masked_lm_loss(model, (IDS, REAL, TARGETS))
    logits = model(IDS, REAL)[0]
    wanted = F.cross_entropy(logits.flatten(0, 1), TARGETS.flatten(), ignore_index=-100, reduction="sum")
    torch.testing.assert_close(found["loss"], wanted, **EXACT)
    by_hand = -sum(logits[b, t].log_softmax(-1)[TARGETS[b, t]] for b, t in CHOSEN.nonzero().tolist())
    torch.testing.assert_close(found["loss"], by_hand, **EXACT)
    right = sum((logits[b, t].argmax() == TARGETS[b, t]).item() for b, t in CHOSEN.nonzero().tolist())
    assert (found["count"], found["accuracy"]) == (5, right)
    likeliest = logits.argmax(-1).masked_fill(~CHOSEN, IGNORE)
    assert masked_lm_loss(model, (IDS, REAL, likeliest))["accuracy"] == 5
    assert found.keys() == {"loss", "count", "accuracy"}


def test_pretraining_loss_by_hand():
    """Fails if one of the means is a sum, the tasks change places, or the segments do not arrive."""
    model, strangers = filled(BERTForPreTraining(BERT(CONFIG))), torch.tensor([0, 1, 1])
    found = pretraining_loss(model, (IDS, REAL, SEGMENT_IDS, TARGETS, strangers))
    token_logits, pair_logits = model(IDS, REAL, SEGMENT_IDS)
    tokens = F.cross_entropy(token_logits[CHOSEN], TARGETS[CHOSEN])
    pairs = -pair_logits.log_softmax(-1)[range(B), strangers].sum() / 3
    torch.testing.assert_close(found["loss"], 5 * (tokens + pairs), **EXACT)
    assert found["count"] == 5
    assert found["accuracy"] == (token_logits[CHOSEN].argmax(-1) == TARGETS[CHOSEN]).sum()
    right = (pair_logits.argmax(-1) == strangers).double().mean().item()
    assert found["pair_accuracy"].item() == pytest.approx(5 * right, rel=1e-6)  # float32
    assert found.keys() == {"loss", "count", "accuracy", "pair_accuracy"}
    others = pretraining_loss(model, (IDS, REAL, SEGMENT_IDS, TARGETS, 1 - strangers))
    assert others["pair_accuracy"].item() == pytest.approx(5 * (1 - right), rel=1e-6)


def test_the_losses_in_the_training_loop():
    """Fails if the loop's means are not the mean over all chosen places of unequal batches."""
    model, generator = filled(BERTForPreTraining(BERT(CONFIG))), seeded(4)
    strangers, batches = torch.tensor([0, 1, 0]), []
    for mask_prob in (0.4, 0.8):
        ids = torch.randint(4, V, (B, T), generator=generator)
        inputs, targets = mask_tokens(ids, REAL, V, BLANK, generator, mask_prob, first_regular_id=4)
        batches.append((inputs, REAL, targets))
    counts = [(targets != IGNORE).sum().item() for *_, targets in batches]
    assert counts[0] != counts[1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    means = train_epoch(model, batches, masked_lm_loss, optimizer, grad_accumulation_steps=2)
    logits = [model(inputs, mask)[0].flatten(0, 1) for inputs, mask, _ in batches]
    wanted = F.cross_entropy(torch.cat(logits), torch.cat([targets.flatten() for *_, targets in batches]))
    assert means["loss"] == pytest.approx(wanted.item(), abs=1e-10)
    batches = [(inputs, mask, SEGMENT_IDS, targets, strangers) for inputs, mask, targets in batches]
    means = train_epoch(model, batches, pretraining_loss, optimizer)
    each = [pretraining_loss(model, batch) for batch in batches]
    for name in ("loss", "accuracy", "pair_accuracy"):
        assert means[name] == pytest.approx(sum(part[name].item() for part in each) / sum(counts), abs=1e-6)


def test_both_losses_of_nothing_are_refused():
    """Fails with 0 / 0, a loss that is not a number, in the middle of training."""
    model, nothing = BERTForPreTraining(BERT(CONFIG)), torch.full((B, T), IGNORE)
    with pytest.raises(ValueError, match="no position is chosen: all targets are IGNORE"):
        masked_lm_loss(model, (IDS, REAL, nothing))
    with pytest.raises(ValueError, match="no position is chosen: all targets are IGNORE"):
        pretraining_loss(model, (IDS, REAL, SEGMENT_IDS, nothing, torch.zeros(B).long()))


def test_pre_training_learns_both_tasks():
    """Fails if the masked token's vector does not see the others, or that of [CLS] not the second text.

    [CLS] a a+1 a+2 [SEP] b b+1 b+2 [SEP]: one masked token follows from its neighbours, and the second text follows
    the first if b is 4 or 5. Chance is more than 1 nat for a token and log 2 = 0.69 for a pair.
    """
    set_seed(0)
    generator = seeded(0)
    config = BERTConfig(10, LONGEST, 32, 1, 4, 64, dropout=0.0)
    model = init_weights(BERTForPreTraining(BERT(config)), 0.2)  # so narrow a model learns slowly from 0.02
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)

    def batch(n=32):
        a, b = torch.randint(4, 8, (2, n, 1), generator=generator)
        steps, ends = torch.arange(3), torch.full((n, 1), SEP)
        ids = torch.cat([torch.full((n, 1), CLS), a + steps, ends, b + steps, ends], 1)
        where = torch.zeros_like(ids, dtype=torch.bool).scatter_(1, torch.randint(1, 4, (n, 1), generator=generator), 1)
        segments = torch.tensor([0] * 5 + [1] * 4).expand(n, 9)
        targets = ids.masked_fill(~where, IGNORE)
        return ids.masked_fill(where, BLANK), torch.ones_like(where), segments, targets, (b[:, 0] > 5).long()

    means = [train_epoch(model, [batch()], pretraining_loss, optimizer) for _ in range(120)]
    assert means[0]["loss"] > 2.0
    assert sum(step["loss"] for step in means[-10:]) / 10 < 0.05
    assert all(step["accuracy"] > 0.99 for step in means[-5:])
    assert all(step["pair_accuracy"] > 0.99 for step in means[-5:])


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_fine_tuning_learns_in_the_training_loop(pool):
    """Fails if a classifier's form is not the one `classification_loss` calls: does the text hold token 4 or 5?"""
    set_seed(0)
    generator, model = seeded(1), init_weights(BERTForSequenceClassification(BERT(CONFIG), 2, pool=pool), 0.2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def batch(n=32):
        labels = torch.randint(2, (n,), generator=generator)
        ids = torch.randint(6, V, (n, T), generator=generator)
        ids.scatter_(1, torch.randint(2, (n, 1), generator=generator), labels[:, None] + 4)
        return ids, length_mask([2 + i % 6 for i in range(n)], T), labels

    means = [train_epoch(model, [batch()], classification_loss, optimizer) for _ in range(40)]
    assert sum(step["loss"] for step in means[-5:]) / 5 < 0.05


# --- bad input ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model(IDS, REAL & False), r"real has a row without a real token: row 0"),
        (lambda model: model(IDS, length_mask([2, 3, 0], T)), r"real has a row without a real token: row 2"),
        (
            lambda model: model(IDS, REAL.flip(1)),
            r"real has padding before a real token; the real tokens must come first",
        ),
        (lambda model: model.hidden(IDS, REAL.flip(1)), r"real has padding before a real token"),
        (lambda model: model(IDS, REAL.float()), r"real must be torch.bool, got torch.float32"),
        (lambda model: model(IDS, REAL[:, 1:]), r"real must be a tensor \(3, 7\), got one of shape \(3, 6\)"),
        (lambda model: model.hidden(IDS, REAL[:1]), r"real must be a tensor \(3, 7\), got one of shape \(1, 7\)"),
        (lambda model: model(IDS.float()), r"ids must be torch.int64, got torch.float32"),
        (lambda model: model(IDS.int()), r"ids must be torch.int64, got torch.int32"),
        (lambda model: model(IDS[0]), r"ids must be a tensor \(B, T\), got one of shape \(7,\)"),
        (lambda model: model(IDS + V), rf"ids must be from 0 to {V - 1}, got"),
        (lambda model: model(torch.ones(1, 10).long()), r"positions 0 to 9 are .*, the table has 0 to 8"),
        (lambda model: model(IDS, None, SEGMENT_IDS[:, 1:]), r"segment_ids must be a tensor \(3, 7\), got .* \(3, 6\)"),
        (lambda model: model(IDS, None, SEGMENT_IDS[:1]), r"segment_ids must be a tensor \(3, 7\), got .* \(1, 7\)"),
        (lambda model: model(IDS, None, SEGMENT_IDS + 1), r"segment_ids must be from 0 to 1, got 1 to 2"),
        (lambda model: BERT(CONFIG, pooler=False).pool(draw(B, T, D)), r"this BERT was made with pooler=False"),
        (lambda model: BERTForSequenceClassification(BERT(CONFIG, False)), r"pool must be one of 'mean', got 'cls'"),
        (lambda model: BERTForSequenceClassification(model, pool="max"), r"pool must be one of .*, got 'max'"),
        (lambda model: BERTForSequenceClassification(model, 0), r"num_classes must be .* at least 1, got 0"),
        (
            lambda model: BERTForSequenceClassification(model, dropout=1.5),
            r"dropout must be from 0 to below 1, got 1.5",
        ),
        (lambda model: BERTForTokenClassification(model, 0), r"num_classes must be .* at least 1, got 0"),
        (lambda model: BERTConfig.from_name("bert"), r"name must be one of 'bert-base-uncased', .*, got 'bert'"),
        (lambda model: BERT(dataclasses.replace(CONFIG, residual="pre")), r"residual must be one of .*, got 'pre'"),
        (lambda model: BERT(dataclasses.replace(CONFIG, num_heads=5)), r"d_model must be a multiple of num_heads"),
        (lambda model: BERT(dataclasses.replace(CONFIG, num_layers=0)), r"num_layers must be .* at least 1, got 0"),
        (lambda model: BERT(dataclasses.replace(CONFIG, max_len=0)), r"max_len must be .* at least 1, got 0"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call(BERT(CONFIG))
