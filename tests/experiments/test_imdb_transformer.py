"""The recorded runs of chapter 09 on IMDB's reviews, on miniature reviews; the tutorial's model against torch's."""

import math
from collections import Counter

import pytest
import torch

from course_lib import datasets
from course_lib.experiments import imdb, imdb_transformer, imdb_tutorial
from course_lib.text import UNK, build_vocab, numericalize, tokenize
from tests.helpers import imdb as fake

SIZES = {"width": 8, "feedforward": 16, "batch_size": 16}
ROW = {"parameters", "epochs", "valid_accuracy", "train_seconds", "seconds_per_epoch", "accuracy", "accuracy_unseen"}


@pytest.fixture
def small_imdb(monkeypatch):
    """300 + 100 reviews in place of IMDB's; three test reviews stand in the training set too."""
    splits = fake.splits(train=300, test=100)
    monkeypatch.setattr(datasets, "imdb", lambda split: splits[split])
    return splits


def check_rows(outcome, names, epochs):
    """Rows and histories of these names, each row that of the last epoch."""
    assert list(outcome["history"]) == names
    for name, entries in outcome["history"].items():
        row = outcome["results"][name]
        assert row.keys() == ROW | {"seen"}
        assert [entry["epoch"] for entry in entries] == list(range(1, epochs + 1))
        assert row["valid_accuracy"] == entries[-1]["valid_accuracy"]
        assert row["train_seconds"] == pytest.approx(sum(entry["seconds"] for entry in entries))
        assert row["seconds_per_epoch"] == pytest.approx(row["train_seconds"] / epochs)
        assert row["seen"] == 3


@pytest.mark.parametrize("pairs", [None, torch.tensor([1 * 9 + 2, 2 * 9 + 5])])
def test_padding_changes_the_tutorials_answer_only(pairs):
    """Fails if the tutorial's model has a mask after all, or the course's reads padding."""
    torch.manual_seed(0)
    options = {"embedding_dropout": 0.3, "dropout": 0.1, "attention_dropout": 0.1, "std": 0.1, "pairs": pairs}
    mended = imdb_transformer.make_classifier(9, 8, 2, 16, pool="mean", **options).eval()
    tutorial = imdb_tutorial.TutorialClassifier(9, 8, 2, 16).eval()
    ids = torch.tensor([[2, 5, 7, 1, 1]])
    mask = ids != 1
    torch.testing.assert_close(mended(ids, mask), mended(ids[:, :3], mask[:, :3]))
    assert (tutorial(ids, mask) - tutorial(ids[:, :3], mask[:, :3])).abs().max() > 1e-3


def test_classifier_starts_with_small_embeddings():
    """Fails if a table keeps torch's standard deviation of 1."""
    torch.manual_seed(0)
    options = {"embedding_dropout": 0.0, "dropout": 0.0, "attention_dropout": 0.0}
    model = imdb_transformer.make_classifier(2000, 8, 2, 16, pool="mean", std=0.1, pairs=torch.arange(3000), **options)
    for table in (model.embedding.embedding.weight, model.embedding.pairs.weight[1:]):
        assert table.std().item() == pytest.approx(0.1, rel=0.05)


# --- batches ----------------------------------------------------------------------


def test_hidden_words_are_a_share():
    """Fails if another share is hidden, the same words each time, or hiding changes what is not hidden."""
    rows = [torch.arange(2, 2 + length) for length in (1, 2, 400, 3000)]
    hidden, again = (imdb_transformer._hidden(rows, 0.25, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert not torch.equal(hidden[3], again[3])
    for row, new in zip(rows, hidden, strict=True):
        assert torch.equal(new, torch.where(new == UNK, UNK, row))
    share = sum((row == UNK).sum().item() for row in hidden) / 3403
    assert abs(share - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 3403)


def test_rectangles_hide_words_but_no_padding():
    """Fails if the share is wrong, padding turns into a word, or a label moves."""
    ids = torch.arange(2, 2002).view(40, 50).masked_fill(torch.arange(50) >= 30, 1)
    padded = ids, ids != 1, torch.arange(40)
    found = list(imdb_transformer._rectangles(padded, 16, torch.Generator().manual_seed(0), 0.3))
    shown, real, labels = (torch.cat(part) for part in zip(*found, strict=True))
    hidden = (shown == UNK) & real
    assert hidden.sum().item() == pytest.approx(0.3 * 40 * 30, rel=0.15)
    assert (shown[~hidden] == ids[labels][~hidden]).all()


def test_rectangles_are_all_reviews_once():
    """Fails if a review is lost or repeated, or the batches are not padded to one length in another order."""
    recipe = imdb_transformer.Recipe(None, 0.1, mended=False, length=6)
    rows = [torch.full((1 + i % 6,), 2 + i) for i in range(10)]
    made = list(recipe.batches(rows, list(range(10)), 4)(torch.Generator().manual_seed(0)))
    assert [ids.shape for ids, _, _ in made] == [(4, 6), (4, 6), (2, 6)]
    order = torch.cat([labels for _, _, labels in made])
    assert order.tolist() != list(range(10))
    assert sorted(order.tolist()) == list(range(10))
    for ids, mask, labels in made:
        assert torch.equal(ids[:, 0], labels + 2)
        assert torch.equal(mask.sum(1), 1 + labels % 6)


# --- the runs ---------------------------------------------------------------------


def test_tutorial_records_its_last_epoch(small_imdb):
    """Fails if a metric is missing, the row is not the last epoch's, or nothing is learnt."""
    torch.manual_seed(0)
    outcome = imdb_transformer.imdb_tutorial(seed=0, epochs=5, length=20, learning_rate=0.01, **SIZES)
    check_rows(outcome, ["as it was"], 5)
    assert outcome["results"]["as it was"]["accuracy"] > 0.8


def test_transformer_records_every_variant_and_their_times(small_imdb):
    """Fails if a variant or a time is missing, or nothing is learnt."""
    torch.manual_seed(0)
    rates = {"learning_rate": 0.02, "tutorial_rate": 0.01}
    names = ["mask added", "mended", "mended, attention dropout"]
    options = {"length": 20, "timed_reviews": 40, "rounds": 2, **rates, **SIZES}
    outcome = imdb_transformer.imdb_transformer(seed=0, variants=names, epochs=4, **options)
    check_rows(outcome, names, 4)
    assert all(outcome["results"][name]["accuracy"] > 0.8 for name in names)
    times = outcome["results"]["training step"]
    keys = ("tutorial", "mask_added", "mended", "mended_attention_dropout")
    assert set(times) == {f"{key}_{kind}" for key in keys for kind in ("seconds", "share")}
    assert times["tutorial_share"] == 1
    assert min(times.values()) > 0


def test_one_change_leaves_the_others_in_place(small_imdb, monkeypatch):
    """Fails if a variant is missing, or takes back something other than what its name says, or more than that."""
    seen, cuts, record, read = [], [], imdb_transformer._record, imdb_transformer._read
    monkeypatch.setattr(imdb_transformer, "_read", lambda *args: cuts.append(args[1]) or read(*args))

    def spied(recipe, parts, *rest):
        seen.append((recipe, parts))
        return record(recipe, parts, *rest)

    monkeypatch.setattr(imdb_transformer, "_record", spied)
    outcome = imdb_transformer.imdb_one_change(0, epochs=1, length=12, **SIZES)
    names = ["mask", "tokens", "end", "mean", "dropout", "start", "learning"]
    check_rows(outcome, [f"all but {name}" for name in names], epochs=1)
    rates = [recipe.learning_rate for recipe, _ in seen]
    assert rates == [3e-3] * 6 + [1e-3]
    assert [recipe.mended for recipe, _ in seen] == [True] * 6 + [False]
    assert [recipe.length for recipe, _ in seen] == [12] + [None] * 6
    assert [recipe.word_dropout for recipe, _ in seen] == [0.3] * 4 + [0.0] + [0.3] * 2
    models = [recipe.make(parts["vocab_size"]) for recipe, parts in seen]
    assert [isinstance(model, imdb_transformer.WithoutMask) for model in models] == [True] + [False] * 6
    models[0] = models[0].model
    assert [model.pool for model in models] == ["mean"] * 3 + ["max"] + ["mean"] * 3
    stds = [model.embedding.embedding.weight.std().item() for model in models]
    assert [round(std, 1) for std in stds] == [0.1] * 5 + [1.0, 0.1]
    layers = [model.encoder.layers[0] for model in models]
    assert [layer.self_attn.dropout.p for layer in layers] == [0.0] * 4 + [0.1] + [0.0] * 2
    assert [model.embedding.dropout.p for model in models] == [0.4] * 4 + [0.1] + [0.4] * 2
    first = {len(parts["train"][0][0]) for _, parts in seen}
    assert max(first) <= 12
    rows = [parts["train"][0] for _, parts in seen]
    assert all(torch.equal(a, b) for a, b in zip(rows[0], rows[3], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(rows[0], rows[2], strict=True))
    assert cuts == [tokenize, imdb_transformer._between_spaces, tokenize]  # each way of reading once
    read_alike = [parts is seen[0][1] for _, parts in seen]
    assert read_alike == [True, False, False] + [True] * 4  # but for "tokens" and "end"


def test_without_mask_padding_is_read():
    """Fails if the wrapper passes the mask on."""
    torch.manual_seed(0)
    options = {"embedding_dropout": 0.0, "dropout": 0.0, "attention_dropout": 0.0, "std": 1.0}
    model = imdb_transformer.make_classifier(9, 8, 2, 16, pool="mean", **options).eval()
    ids = torch.tensor([[2, 5, 7, 1, 1]])
    unmasked = imdb_transformer.WithoutMask(model)(ids, ids != 1)
    torch.testing.assert_close(unmasked, model(ids, torch.ones(1, 5, dtype=torch.bool)))
    assert (unmasked - model(ids, ids != 1)).abs().max() > 1e-3


def test_best_records_both_inputs(small_imdb):
    """Fails if a variant is missing, the pairs have no table, or nothing is learnt."""
    torch.manual_seed(0)
    outcome = imdb_transformer.imdb_best(seed=0, epochs=4, least=2, learning_rate=0.02, **SIZES)
    check_rows(outcome, ["words", "words and pairs"], 4)
    words, pairs = (outcome["results"][name] for name in ("words", "words and pairs"))
    assert (pairs["parameters"] - words["parameters"]) % 8 == 0
    assert pairs["parameters"] > words["parameters"] + 100
    assert min(words["accuracy"], pairs["accuracy"]) > 0.8


def test_best_of_all_labels_trains_on_every_labelled_review(small_imdb, monkeypatch):
    """Fails if a training review is left out or read twice, or a test review is among them."""
    seen, record = [], imdb_transformer._record

    def spied(recipe, parts, *rest):
        seen.append((recipe, parts))
        return record(recipe, parts, *rest)

    monkeypatch.setattr(imdb_transformer, "_record", spied)
    torch.manual_seed(0)
    outcome = imdb_transformer.imdb_best_all(seed=0, epochs=2, **SIZES)
    ((recipe, parts),) = seen
    texts, labels = small_imdb["train"]
    words = [tokenize(text) for text in texts]
    vocab = build_vocab(words, max_size=50_000, specials=("<unk>", "<pad>"))
    wanted = Counter((*numericalize(row, vocab), label) for row, label in zip(words, labels, strict=True))
    assert Counter((*row.tolist(), label) for row, label in zip(*parts["train"], strict=True)) == wanted
    assert parts["vocab_size"] == len(vocab)
    assert "valid" not in parts
    assert recipe.word_dropout == 0.4
    row, history = outcome["results"]["words and pairs"], outcome["history"]["words and pairs"]
    assert row.keys() == (ROW | {"seen"}) - {"valid_accuracy"}
    assert [set(entry) for entry in history] == [{"epoch", "seconds", "train_loss", "train_accuracy"}] * 2


def test_test_labels_decide_nothing(small_imdb):
    """Fails if anything is chosen by the test set: with its labels turned over only the test accuracy changes."""

    def run():
        torch.manual_seed(0)
        return imdb_transformer.imdb_best(seed=2, variants=("words",), epochs=2, **SIZES)

    before = run()
    small_imdb["test"] = small_imdb["test"][0], [1 - label for label in small_imdb["test"][1]]
    after = run()
    for old, new in zip(before["history"]["words"], after["history"]["words"], strict=True):
        assert {**old, "seconds": 0} == {**new, "seconds": 0}
    right, wrong = (outcome["results"]["words"]["accuracy"] for outcome in (before, after))
    assert right == pytest.approx(1 - wrong)


def test_reviews_are_cut_at_the_right_end(small_imdb):
    """Fails if the tutorial's reviews do not keep their first words, or the mended ones' their last."""
    reviews = imdb.raw_reviews(0, 0.1)
    reviews["test"] = ["one two, three"] * 100, reviews["test"][1]
    reviews["train"][0][0] = "one two, three , two"
    first = imdb_transformer._read(reviews, imdb_transformer._between_spaces, slice(2), 50)
    last = imdb_transformer._read(reviews, imdb_transformer.tokenize, slice(-2, None), 50)
    assert [len(parts["test"][0][0]) for parts in (first, last)] == [2, 2]
    for parts in (first, last):
        assert UNK not in parts["test"][0][0]
    assert not torch.equal(first["test"][0][0], last["test"][0][0])
    assert len(reviews["train"][0]) == 270
    assert len(reviews["valid"][0]) == 30
