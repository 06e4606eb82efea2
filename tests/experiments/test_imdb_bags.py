"""Chapter 02's experiments on a small generated IMDB: shapes of the record, fairness, and the counts of padding."""

import pytest
import torch

from course_lib import datasets
from course_lib.experiments import imdb, imdb_bags
from tests.helpers import imdb as fake
from tests.helpers.imdb import BAD, GOOD

FILLER = "the film was a story of it and is".split()


def review(rng, label):
    """A review of 4 to 40 words, one in six of them telling."""
    words = [
        rng.choice((GOOD if label else BAD) if rng.random() < 1 / 6 else FILLER) for _ in range(rng.randint(4, 40))
    ]
    return " ".join([*words, rng.choice(GOOD if label else BAD)])


@pytest.fixture
def small_imdb(monkeypatch):
    """300 + 200 reviews in place of IMDB's; five test reviews stand in the training set too."""
    splits = fake.splits(review, seen=5, train=300, test=200)
    monkeypatch.setattr(datasets, "imdb", lambda split: splits[split])
    return splits


def test_imdb_bow_records_every_model(small_imdb):
    """Fails if a variant or metric that the chapter plots is missing, or a model does not learn."""
    outcome = imdb_bags.imdb_bow(seed=1, strengths=(1e-3, 1e-2), steps=30)
    models = [f"unigrams, {kind}" for kind in ("binary", "scaled", "counts")]
    models += [f"unigrams + bigrams, {kind}" for kind in ("binary", "scaled")]
    results = outcome["results"]
    assert set(results) == {"majority", "words", *models}
    assert results["majority"] == {"accuracy": 0.5}
    for name in models:
        row = results[name]
        assert row["accuracy"] > 0.9
        assert row["seen"] == 5
        assert row["l2"] in row["l2_tried"] == [1e-3, 1e-2]
        assert row["valid_accuracy"] == max(row["valid_accuracy_by_l2"])
        curve = [entry["valid_accuracy"] for entry in outcome["history"][name]]
        assert curve[row["step"] - 1] == max(curve) == row["valid_accuracy"]
    assert set(outcome["history"]) == set(models)


def test_imdb_bow_finds_the_telling_words_and_not_the_order(small_imdb):
    """Fails if the lists are swapped, or a model of single words scores the two opposites differently."""
    texts, labels = small_imdb["train"]
    small_imdb["train"] = [*texts, *["seldom"] * 3], [*labels, 1, 1, 1]
    results = imdb_bags.imdb_bow(seed=0, strengths=(1e-3,), steps=30, least_shown=20)["results"]
    words = results["words"]
    assert "seldom" not in words["positive_words"]  # only in positive reviews, but in three of them
    assert set(words["positive_words"][:3]) == set(GOOD)
    assert set(words["negative_words"][:3]) == set(BAD)
    assert words["positive_weights"] == sorted(words["positive_weights"], reverse=True)
    assert words["negative_weights"][0] < 0 < words["positive_weights"][0]
    for kind in ("binary", "scaled", "counts"):
        row = results[f"unigrams, {kind}"]
        assert row["logit_praise"] == pytest.approx(row["logit_blame"], abs=1e-5)


def test_imdb_embeddings_chooses_on_validation_only(small_imdb):
    """Fails if the row is not that of the best validation epoch, or the same seed gives another run."""
    torch.manual_seed(0)
    outcome = imdb_bags.imdb_embeddings(seed=0, width=8, epochs=6, batch_size=16, learning_rate=0.02)
    row, history = (outcome[part]["averaged embeddings"] for part in ("results", "history"))
    assert [entry["epoch"] for entry in history] == [1, 2, 3, 4, 5, 6]
    assert row["valid_accuracy"] == max(entry["valid_accuracy"] for entry in history)
    assert history[row["best_epoch"] - 1]["valid_accuracy"] == row["valid_accuracy"]
    assert row["accuracy"] > 0.9
    assert row["logit_praise"] == pytest.approx(row["logit_blame"], abs=1e-5)
    torch.manual_seed(0)
    assert outcome == imdb_bags.imdb_embeddings(seed=0, width=8, epochs=6, batch_size=16, learning_rate=0.02)


def test_imdb_ends_reads_one_place_only(small_imdb):
    """Fails if a piece is cut elsewhere: every review ends in its one telling word, the rest is filler."""
    for split, (texts, labels) in list(small_imdb.items()):
        said = [f"{'it was a film ' * 3}{'great' if label else 'dull'}" for label in labels]
        small_imdb[split] = [*said[:-2], "short", *said[-1:]], labels
        assert len(small_imdb[split][0]) == len(texts)
    results = imdb_bags.imdb_ends(seed=0, kept=4, strengths=(1e-3,), steps=10)["results"]
    assert set(results) == {"first", "middle", "last"}
    assert results["last"]["accuracy"] == 1
    assert max(results["first"]["accuracy"], results["middle"]["accuracy"]) < 0.6
    sizes = {place: [row[f"{split}_reviews"] for split in ("train", "valid", "test")] for place, row in results.items()}
    assert sizes["first"] == sizes["middle"] == sizes["last"]
    assert sizes["last"][2] == len(small_imdb["test"][0]) - 1  # without the one that is too short


def test_test_labels_decide_nothing(small_imdb):
    """Fails if anything is chosen by the test set: with its labels turned over only the test accuracy changes."""
    before = imdb_bags.imdb_bow(seed=2, strengths=(1e-3, 1e-2), steps=10)
    small_imdb["test"] = small_imdb["test"][0], [1 - label for label in small_imdb["test"][1]]
    after = imdb_bags.imdb_bow(seed=2, strengths=(1e-3, 1e-2), steps=10)
    assert before["history"] == after["history"]
    row, turned = (outcome["results"]["unigrams, binary"] for outcome in (before, after))
    assert turned["accuracy"] == pytest.approx(1 - row["accuracy"])
    ignored = ("accuracy", "accuracy_unseen")
    assert {k: v for k, v in row.items() if k not in ignored} == {k: v for k, v in turned.items() if k not in ignored}


def test_accuracy_unseen_leaves_the_shared_reviews_out():
    """Fails if the shared reviews are the ones that are kept: all of them are right here, all others wrong."""
    seen = torch.tensor([True, False, True, False])
    scores = imdb.test_scores(torch.tensor([1.0, 1.0, -1.0, -1.0]), {"test": ([], [1, 0, 0, 1]), "seen": seen})
    assert scores == {"accuracy": 0.5, "accuracy_unseen": 0.0, "seen": 2}


def test_imdb_padding_counts(small_imdb):
    """Fails if padding is not 1 - tokens / entries, if bucketing does not help, or if cut tokens are not counted."""
    results = imdb_bags.imdb_padding(seed=0, batch_size=8, lengths_kept=(20,))["results"]
    lengths = results["lengths"]
    assert lengths["reviews"] == sum(lengths["histogram_counts"]) == 270
    fixed, random_order, bucketed = (
        results[name] for name in ("fixed: the longest review", "per batch, random", "per batch, bucketed")
    )
    assert fixed["padding"] == pytest.approx(1 - lengths["mean"] / lengths["longest"])
    assert fixed["padding"] > random_order["padding"] > 2 * bucketed["padding"] > 0
    assert fixed["tokens_lost"] == bucketed["tokens_lost"] == 0
    cut = results["fixed: 20 tokens"]
    assert cut["entries_per_review"] == 20
    assert cut["tokens_lost"] == results["bucketed, at most 20 tokens"]["tokens_lost"] > 0.1
    kept = (1 - cut["tokens_lost"]) * lengths["mean"]
    assert cut["padding"] == pytest.approx(1 - kept / 20)


def test_padding_by_hand():
    """Fails if batches are averaged instead of their entries added: lengths 1 3 | 2 2, at most 2 kept."""
    got = imdb_bags._padding(
        torch.tensor([1, 3, 2, 2]), [torch.tensor([0, 1]), torch.tensor([2, 3])], kept=2, fixed=False
    )
    assert got == {"padding": pytest.approx(1 / 8), "tokens_lost": pytest.approx(1 / 8), "entries_per_review": 2}
