"""Bags of words against one-hot sums and finite optima; averaged embeddings against a loop."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from course_lib import bag_of_words
from course_lib.text import build_vocab, length_mask, numericalize, pad_batch, tokenize

V = 11


def random_batch(seed=0, B=5, T=7):
    """Ids with repeats, and rows of 7, 6, 3, 1 and 0 real tokens; what stands in the padding is noise."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, V, (B, T), generator=generator), length_mask([7, 6, 3, 1, 0], T)


def double_bag(binary):
    """A BagOfWords in float64 with random weights."""
    model = bag_of_words.BagOfWords(V, binary).double()
    torch.manual_seed(3)
    with torch.no_grad():
        model.weight.normal_()
        model.bias.normal_()
    return model


def permuted(ids, mask, seed=4):
    """The same rows with their real tokens in another order."""
    ids, generator = ids.clone(), torch.Generator().manual_seed(seed)
    for row, real in zip(ids, mask, strict=True):
        n = int(real.sum())
        row[:n] = row[:n][torch.randperm(n, generator=generator)]
    return ids


# --- bag_of_words ----------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [True, False])
def test_bag_of_words_is_the_sum_of_one_hots(binary):
    """Fails if padding is counted or counts are not capped (or capped when they should not be)."""
    ids, mask = random_batch()
    want = (F.one_hot(ids, V) * mask[..., None]).sum(1).float()
    assert want.max() > 1
    assert torch.equal(bag_of_words.bag_of_words(ids, mask, V, binary), want.clamp(max=1) if binary else want)


def test_first_occurrences_by_hand():
    """Fails if a later occurrence is marked, if padding hides a real token, or if padding is marked."""
    ids = torch.tensor([[5, 2, 5, 2, 9], [3, 3, 3, 3, 3]])
    mask = torch.tensor([[True, True, True, True, True], [False, True, True, False, False]])
    assert bag_of_words.first_occurrences(ids, mask).int().tolist() == [[1, 1, 0, 0, 1], [0, 1, 0, 0, 0]]
    assert bag_of_words.first_occurrences(
        torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.bool)
    ).shape == (
        2,
        0,
    )


def test_add_bigrams_by_hand():
    """Fails if a pair is lost, or if one word or none is an error."""
    assert bag_of_words.add_bigrams("not so great".split()) == ["not", "so", "great", "not so", "so great"]
    assert bag_of_words.add_bigrams(["one"]) == ["one"]
    assert bag_of_words.add_bigrams([]) == []
    with pytest.raises(ValueError, match="tokens must be a list of strings, got str 'not great'"):
        bag_of_words.add_bigrams("not great")


# --- BagOfWords ------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [True, False])
def test_bag_model_equals_the_dense_product_forward_and_backward(binary):
    """Fails if the look-up differs from bag_of_words @ weight + bias in a value or in a gradient."""
    ids, mask = random_batch(1)
    model = double_bag(binary)
    got = model(ids, mask)
    want = bag_of_words.bag_of_words(ids, mask, V, binary).double() @ model.weight + model.bias
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    direction = torch.arange(1.0, 6, dtype=torch.float64)
    grads = [torch.autograd.grad((logits * direction).sum(), [model.weight, model.bias]) for logits in (got, want)]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("binary", [True, False])
def test_score_of_flat_rows_equals_the_padded_forward(binary):
    """Fails if rows run into each other, or an empty row takes the next one's tokens."""
    ids, mask = random_batch(2)
    rows = [row[real].tolist() for row, real in zip(ids, mask, strict=True)]
    model = double_bag(binary)
    for flat_rows in (rows, [np.array(row, dtype=np.int64) for row in rows]):
        got = model.score(*bag_of_words.flatten_rows(flat_rows, binary))
        torch.testing.assert_close(got, model(ids, mask), rtol=1e-10, atol=1e-10)


def test_flatten_rows_keeps_order_and_repeats_for_counts():
    """Fails if counts are lost with binary=False or kept with binary=True."""
    ids, starts = bag_of_words.flatten_rows([[7, 7, 4], [9, 2]], binary=False)
    assert (ids.tolist(), starts.tolist()) == ([7, 7, 4, 9, 2], [0, 3])
    ids, starts = bag_of_words.flatten_rows([[7, 7, 4], [9, 2]])
    assert (ids.tolist(), starts.tolist()) == ([4, 7, 2, 9], [0, 2])


# --- fitting ---------------------------------------------------------------------------------


def random_rows(n=60, seed=0):
    """Rows of 1 to 9 ids, labels that depend on the ids but not fully."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, V, (1 + i % 9,), generator=generator).tolist() for i in range(n)]
    return rows, [int(sum(row) / len(row) + 4 * torch.rand((), generator=generator) > 7) for row in rows]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_fit_reaches_the_optimum(binary, scaled):
    """Fails on a slip in the hand-written gradient, the penalty or the scale: autograd's gradient must vanish there."""
    rows, labels = random_rows()
    ids, mask = pad_batch(rows)
    model, l2 = bag_of_words.BagOfWords(V, binary).double(), 0.03
    scale = torch.linspace(0.5, 2, V, dtype=torch.float64) if scaled else None
    history = bag_of_words.fit_bag_of_words(model, rows, labels, l2, scale, steps=200, tolerance=1e-8)
    assert len(history) < 200
    nats = F.binary_cross_entropy_with_logits(model(ids, mask), torch.tensor(labels).double())
    assert history[-1]["train_loss"] == pytest.approx(nats.item(), rel=1e-12)
    loss = nats + l2 / 2 * (model.weight / (scale if scaled else 1)).square().sum()
    for gradient in torch.autograd.grad(loss, [model.weight, model.bias]):
        assert gradient.abs().max() < 1e-7
    assert model.weight.abs().max() > 0.1


def test_fit_history_holds_each_step_and_what_log_gives():
    """Fails if the loss does not fall, or log sees other weights than those of its step."""
    rows, labels = random_rows()
    model = bag_of_words.BagOfWords(V)
    history = bag_of_words.fit_bag_of_words(
        model, rows, labels, 0.01, steps=4, log=lambda step: {"seen": step, "size": model.weight.square().sum().item()}
    )
    assert [entry["step"] for entry in history] == [entry["seen"] for entry in history] == [1, 2, 3, 4]
    totals = [entry["objective"] for entry in history]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] < math.log(2)
    assert history[-1]["objective"] == pytest.approx(history[-1]["train_loss"] + 0.005 * history[-1]["size"], rel=1e-6)
    assert history[-1]["size"] == pytest.approx(model.weight.square().sum().item(), rel=1e-6)


def test_fit_is_the_same_from_any_start():
    """Fails if the start decides: the problem is convex."""
    rows, labels = random_rows()
    fitted = []
    for model in (bag_of_words.BagOfWords(V).double(), double_bag(True)):
        bag_of_words.fit_bag_of_words(model, rows, labels, 0.03, steps=200, tolerance=1e-8)
        fitted.append(model.weight.detach())
    torch.testing.assert_close(*fitted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_several_classes_reach_the_optimum_of_the_softmax(binary, scaled):
    """Fails on a slip in the gradient for several classes, or if the padded and the flat logits differ."""
    rows, labels = random_rows()
    labels = [label + (i % 3 == 0) for i, label in enumerate(labels)]
    assert set(labels) == {0, 1, 2}
    model, l2 = bag_of_words.BagOfWords(V, binary, num_classes=3).double(), 0.03
    scale = torch.linspace(0.5, 2, V, dtype=torch.float64) if scaled else torch.ones(V, dtype=torch.float64)
    history = bag_of_words.fit_bag_of_words(
        model, rows, labels, l2, scale if scaled else None, steps=300, tolerance=1e-8
    )
    assert len(history) < 300
    logits = model(*pad_batch(rows))
    assert logits.shape == (60, 3)
    torch.testing.assert_close(model.score(*bag_of_words.flatten_rows(rows, binary)), logits, rtol=1e-10, atol=1e-10)
    nats = F.cross_entropy(logits, torch.tensor(labels))
    assert history[-1]["train_loss"] == pytest.approx(nats.item(), rel=1e-12)
    loss = nats + l2 / 2 * (model.weight / scale[:, None]).square().sum()
    for gradient in torch.autograd.grad(loss, [model.weight, model.bias]):
        assert gradient.abs().max() < 1e-7
    assert model.weight.abs().max() > 0.1


def test_without_a_mask_every_token_is_real():
    """Fails if None is not the mask of all."""
    ids, mask = random_batch(3)
    for model in (double_bag(True), double_bag(False), averaged()):
        assert torch.equal(model(ids), model(ids, torch.ones_like(mask)))


def test_log_count_ratio_by_hand():
    """Fails if repeats in a text count or the classes are swapped: plus one, p is 3 1 3 and q is 1 3 1."""
    rows, labels = [[0, 0, 2], [0, 2], [1], [1, 1]], [1, 1, 0, 0]
    want = torch.tensor([3 / 7, 1 / 7, 3 / 7]).log() - torch.tensor([1 / 5, 3 / 5, 1 / 5]).log()
    torch.testing.assert_close(bag_of_words.log_count_ratio(rows, labels, 3), want)


# --- AveragedEmbeddings ----------------------------------------------------------------------


def averaged(dropout=0.0):
    """A small model in float64."""
    torch.manual_seed(6)
    return bag_of_words.AveragedEmbeddings(V, d_model=4, num_classes=3, dropout=dropout).double()


def test_averaged_embeddings_equal_a_loop_forward_and_backward():
    """Fails if the mean divides by T, takes in padding, or a gradient reaches the wrong row."""
    ids, mask = random_batch(5)
    model = averaged()
    means = []
    for row, real in zip(ids, mask, strict=True):
        vectors = [model.embedding.weight[token] for token, keep in zip(row, real, strict=True) if keep]
        means.append(sum(vectors, torch.zeros(4, dtype=torch.float64)) / max(len(vectors), 1))
    want = model.output(torch.stack(means))
    got = model(ids, mask)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    direction = torch.arange(15.0, dtype=torch.float64).view(5, 3)
    grads = [torch.autograd.grad((logits * direction).sum(), list(model.parameters())) for logits in (got, want)]
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-10, atol=1e-10)


def test_a_row_without_tokens_is_the_bias_alone():
    """Fails if a fully masked row gives NaN."""
    ids, mask = random_batch()
    model = averaged()
    assert torch.equal(model(ids, mask)[4], model.output.bias)


@pytest.mark.parametrize("model", [double_bag(True), double_bag(False), averaged()], ids=["binary", "counts", "mean"])
def test_padding_changes_nothing(model):
    """Fails if what stands in the padding, or how much of it there is, reaches the logits."""
    ids, mask = random_batch(7)
    other = torch.where(mask, ids, (ids + 1) % V)
    wider = F.pad(other, (0, 3), value=1), F.pad(mask, (0, 3), value=False)
    torch.testing.assert_close(model(*wider), model(ids, mask), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", [double_bag(True), double_bag(False), averaged()], ids=["binary", "counts", "mean"])
def test_order_is_invisible(model):
    """The demonstration of chapter 02: fails if a model could tell one order of the same tokens from another."""
    ids, mask = random_batch(8)
    shuffled = permuted(ids, mask)
    assert not torch.equal(shuffled, ids)
    torch.testing.assert_close(model(shuffled, mask), model(ids, mask), rtol=1e-12, atol=1e-12)


def test_bigrams_tell_the_opposites_that_single_words_cannot():
    """Fails if the contrast pair were not the same bag, or if pairs of words did not separate it."""
    texts = [tokenize("not terrible, it's great"), tokenize("not great, it's terrible")]
    for cut, separable in ((list, False), (bag_of_words.add_bigrams, True)):
        vocab = build_vocab(map(cut, texts))
        rows = [numericalize(cut(tokens), vocab) for tokens in texts]
        model = bag_of_words.BagOfWords(len(vocab))
        bag_of_words.fit_bag_of_words(model, rows, [1, 0], l2=1e-3)
        praise, blame = model.score(*bag_of_words.flatten_rows(rows)).tolist()
        assert (praise > 0 > blame) == separable
        assert (abs(praise - blame) < 1e-6) == (not separable)


def test_dropout_only_in_training_and_with_the_right_mean():
    """Fails if dropout acts in evaluation, is not scaled up, or does not follow torch's seed."""
    ids, mask = random_batch(9)
    model, plain = averaged(dropout=0.25), averaged()
    torch.testing.assert_close(model.eval()(ids, mask), plain(ids, mask))
    model.train()
    torch.manual_seed(0)
    first = model(ids, mask)
    torch.manual_seed(0)
    assert torch.equal(first, model(ids, mask))
    assert not torch.equal(first, model(ids, mask))
    draws = torch.stack([model(ids, mask) for _ in range(1000)])
    # Five standard errors of the mean of 1,000 draws.
    assert ((draws.mean(0) - plain(ids, mask)).abs() <= 5 * draws.std(0) / math.sqrt(1000) + 1e-12).all()
    assert draws.std(0)[:4].min() > 0


@pytest.mark.parametrize("model", [double_bag(True), averaged(dropout=0.2).eval()], ids=["binary", "mean"])
def test_a_masked_model_exports_and_compiles_whole(model):
    """Fails if forward branches on a tensor's values."""
    ids, mask = random_batch(3)
    want = model(ids, mask)
    torch.testing.assert_close(torch.export.export(model, (ids, mask)).module()(ids, mask), want)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids, mask), want)


# --- errors ----------------------------------------------------------------------------------

IDS, MASK = random_batch()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bag_of_words.bag_of_words(IDS, MASK, 5), r"ids must be from 0 to 4, got 0 to 10"),
        (lambda: bag_of_words.bag_of_words(IDS - 1, MASK, V), "ids must be from 0 to 10, got -1 to 9"),
        (
            lambda: bag_of_words.bag_of_words(IDS, MASK[:, 1:], V),
            r"real must be a tensor \(5, 7\), got one of shape \(5, 6\)",
        ),
        (
            lambda: bag_of_words.bag_of_words(IDS[0], MASK[0], V),
            r"ids must be a tensor \(B, T\), got one of shape \(7,\)",
        ),
        (lambda: bag_of_words.bag_of_words(IDS, MASK.float(), V), "real must be torch.bool, got torch.float32"),
        (lambda: bag_of_words.BagOfWords(0), "vocab_size must be a whole number of at least 1, got 0"),
        (lambda: bag_of_words.BagOfWords(5, num_classes=1), "num_classes must be a whole number of at least 2, got 1"),
        (lambda: bag_of_words.BagOfWords(5)(IDS, MASK), "ids must be from 0 to 4, got 0 to 10"),
        (
            lambda: bag_of_words.BagOfWords(5).score(*bag_of_words.flatten_rows([[7]])),
            "ids must be from 0 to 4, got 7 to 7",
        ),
        (lambda: bag_of_words.flatten_rows([]), "rows must have a length of at least 1, got 0"),
        (lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5), [], [], 0.1), "got 0 rows and 0 labels"),
        (
            lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5), [[1]], [1, 0], 0.1),
            "got 1 rows and 2 labels",
        ),
        (
            lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5), [[1], [2]], [1, 2], 0.1),
            r"must be whole numbers from 0 to 1, got \[1, 2\]",
        ),
        (
            lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5), [[1]], [1], -0.1),
            "l2 must be a finite number from 0 on, got -0.1",
        ),
        (
            lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5), [[8]], [1], 0.1),
            "rows must be from 0 to 4, got 8 to 8",
        ),
        (
            lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5), [[1]], [1], float("nan")),
            "l2 must be a finite number from 0 on, got nan",
        ),
        (
            lambda: bag_of_words.fit_bag_of_words(
                bag_of_words.BagOfWords(1), [[0]], [1], 0.1, torch.tensor([math.nan])
            ),
            "scale must be finite",
        ),
        (
            lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5), [[1]], [1], 0.1, steps=-1),
            "steps must be a whole number of at least 1, got -1",
        ),
        (
            lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5, num_classes=3), [[1], [2]], [0.5, 2], 1),
            r"must be whole numbers from 0 to 2, got \[0.5, 2.0\]",
        ),
        (
            lambda: bag_of_words.fit_bag_of_words(bag_of_words.BagOfWords(5, num_classes=3), [[1], [2]], [-1, 2], 1),
            r"must be whole numbers from 0 to 2, got \[-1, 2\]",
        ),
        (lambda: bag_of_words.log_count_ratio([[1]], [], 5), "got 1 rows and 0 labels"),
        (lambda: bag_of_words.log_count_ratio([[5]], [1], 5), "rows must be from 0 to 4, got 5 to 5"),
        (lambda: bag_of_words.AveragedEmbeddings(0, 4), "vocab_size must be a whole number of at least 1, got 0"),
        (lambda: bag_of_words.AveragedEmbeddings(5, 0), "d_model must be a whole number of at least 1, got 0"),
        (
            lambda: bag_of_words.AveragedEmbeddings(5, 4, num_classes=0),
            "num_classes must be a whole number of at least 1, got 0",
        ),
        (lambda: bag_of_words.AveragedEmbeddings(5, 4, dropout=1.0), "from 0 to below 1, got 1.0"),
        (lambda: averaged()(IDS + 1, MASK), "ids must be from 0 to 10, got 1 to 11"),
    ],
)
def test_errors_name_what_is_wrong(call, message):
    """Fails if bad input passes or the message names another thing."""
    with pytest.raises(ValueError, match=message):
        call()
