"""The recorded runs of chapter 09 on IMDB's reviews, on miniature reviews; the tutorial's model against torch's."""

import itertools
import math
import random
from collections import Counter

import pytest
import torch
from torch import nn

from course_lib import data
from course_lib.experiments import ch09_imdb
from course_lib.positions import Sinusoidal
from course_lib.tasks import number_of_parameters
from course_lib.text import UNK

GOOD, BAD = ["good", "great", "fine"], ["bad", "awful", "poor"]
FILLER = ["the", "film", "actor", "plot", "was", "."]
SIZES = {"width": 8, "feedforward": 16, "batch_size": 16}
ROW = {"parameters", "epochs", "valid_accuracy", "train_seconds", "seconds_per_epoch", "accuracy", "accuracy_unseen"}


def review(rng, label):
    """A review of 4 to 30 words, one in three of them telling."""
    telling = GOOD if label else BAD
    return " ".join(rng.choice(telling if rng.random() < 1 / 3 else FILLER) for _ in range(rng.randint(4, 30)))


@pytest.fixture
def small_imdb(monkeypatch):
    """300 + 100 reviews in place of IMDB's; three test reviews stand in the training set too."""
    splits = {}
    for seed, (split, n) in enumerate((("train", 300), ("test", 100))):
        rng = random.Random(seed)
        labels = [i % 2 for i in range(n)]
        splits[split] = [review(rng, label) for label in labels], labels
    splits["test"][0][:3] = splits["train"][0][:3]
    monkeypatch.setattr(data, "imdb", lambda split: splits[split])
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


# --- the models -------------------------------------------------------------------


def test_tutorial_layer_is_torchs_without_some_biases():
    """Fails if the layer's mathematics is not Post-LN attention and feed-forward: with torch, gradients too."""
    torch.manual_seed(0)
    ours = ch09_imdb.TutorialEncoderLayer(12, 3, 20, dropout=0.0).double()
    torchs = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, layer_norm_eps=1e-6, batch_first=True).double()
    torchs.self_attn.in_proj_weight.data = torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]).data
    nn.init.zeros_(torchs.self_attn.in_proj_bias)
    torchs.self_attn.out_proj.load_state_dict(ours.out_proj.state_dict())
    for name in ("linear1", "linear2", "norm1", "norm2"):
        getattr(torchs, name).load_state_dict(getattr(ours, name).state_dict())
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x), torchs(x))
    for model in (ours, torchs):
        model(x).square().sum().backward()
    projections = [getattr(ours, f"{name}_proj").weight.grad for name in "qkv"]
    torch.testing.assert_close(torch.cat(projections), torchs.self_attn.in_proj_weight.grad)


def test_tutorial_classifier_is_made_of_its_parts():
    """Fails if positions, norm or maximum are other ones: the positions come from `course_lib.positions`."""
    torch.manual_seed(0)
    model = ch09_imdb.TutorialClassifier(9, d_model=8, nhead=2, dim_feedforward=16, dropout=0.4).eval()
    ids = torch.tensor([[2, 5, 7, 1, 1], [3, 3, 8, 4, 6]])
    x = model.norm(Sinusoidal(8).add(model.embedding(ids)))
    torch.testing.assert_close(model(ids), model.output(model.layer(x).max(1).values), rtol=1e-4, atol=1e-5)
    assert model.embedding.weight[1].eq(0).all()


def test_tutorial_classifier_has_the_tutorials_size():
    """Fails if a part is missing, too many or of another size: counted by hand."""
    embedding, attention = 50_002 * 32, 3 * 32 * 32 + (32 * 32 + 32)
    feedforward, norms, output = (32 * 128 + 128) + (128 * 32 + 32), 3 * 2 * 32, 32 * 2 + 2
    assert number_of_parameters(ch09_imdb.TutorialClassifier(50_002)) == (
        embedding + attention + feedforward + norms + output
    )


@pytest.mark.parametrize("pairs", [None, torch.tensor([1 * 9 + 2, 2 * 9 + 5])])
def test_padding_changes_the_tutorials_answer_only(pairs):
    """Fails if the tutorial's model has a mask after all, or the course's reads padding."""
    torch.manual_seed(0)
    options = {"embedding_dropout": 0.3, "dropout": 0.1, "attention_dropout": 0.1, "std": 0.1, "pairs": pairs}
    mended = ch09_imdb.make_classifier(9, 8, 2, 16, pool="mean", **options).eval()
    tutorial = ch09_imdb.TutorialClassifier(9, 8, 2, 16).eval()
    ids = torch.tensor([[2, 5, 7, 1, 1]])
    mask = ids != 1
    torch.testing.assert_close(mended(ids, mask), mended(ids[:, :3], mask[:, :3]))
    assert (tutorial(ids, mask) - tutorial(ids[:, :3], mask[:, :3])).abs().max() > 1e-3


def test_frequent_pairs_are_counted_within_reviews():
    """Fails if a pair reaches from one review into the next, or the count's limit is another: counted by a loop."""
    rows = [torch.tensor(row) for row in ([2, 5, 2, 5, 7], [5, 2, 7], [2, 5], [7])]
    counts = Counter()
    for row in rows:
        counts.update(itertools.pairwise([1, *row.tolist()]))
    wanted = sorted(before * 9 + after for (before, after), count in counts.items() if count >= 2)
    assert ch09_imdb.frequent_pairs(rows, 9, least=2).tolist() == wanted == [1 * 9 + 2, 2 * 9 + 5, 5 * 9 + 2]


def test_pair_embedding_adds_the_row_of_each_frequent_pair():
    """Fails if a pair gets another row, a rare pair one at all, or the rows are not added before the rest."""
    torch.manual_seed(0)
    codes = torch.tensor([1 * 9 + 2, 2 * 9 + 5, 5 * 9 + 2])
    embedding = ch09_imdb.PairEmbedding(9, 4, codes, position=Sinusoidal(4), scale=1.0, norm=True)
    ids = torch.tensor([[2, 5, 2, 5, 7], [5, 2, 8, 8, 5]])
    assert embedding.rows(ids).tolist() == [[1, 2, 3, 2, 0], [0, 3, 0, 0, 0]]
    x = embedding.embedding.weight[ids] + embedding.pairs.weight[embedding.rows(ids)]
    torch.testing.assert_close(embedding(ids), embedding.norm(embedding.position.add(x)))
    assert embedding.pairs.weight[0].eq(0).all()


def test_classifier_starts_with_small_embeddings():
    """Fails if a table keeps torch's standard deviation of 1."""
    torch.manual_seed(0)
    options = {"embedding_dropout": 0.0, "dropout": 0.0, "attention_dropout": 0.0}
    model = ch09_imdb.make_classifier(2000, 8, 2, 16, pool="mean", std=0.1, pairs=torch.arange(3000), **options)
    for table in (model.embedding.embedding.weight, model.embedding.pairs.weight[1:]):
        assert table.std().item() == pytest.approx(0.1, rel=0.05)


# --- batches ----------------------------------------------------------------------


def test_hidden_words_are_a_share():
    """Fails if another share is hidden, the same words each time, or hiding changes what is not hidden."""
    rows = [torch.arange(2, 2 + length) for length in (1, 2, 400, 3000)]
    hidden, again = (ch09_imdb._hidden(rows, 0.25, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert not torch.equal(hidden[3], again[3])
    for row, new in zip(rows, hidden, strict=True):
        assert torch.equal(new, torch.where(new == UNK, UNK, row))
    share = sum((row == UNK).sum().item() for row in hidden) / 3403
    assert abs(share - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 3403)


def test_rectangles_are_all_reviews_once():
    """Fails if a review is lost or repeated, or the batches are not padded to one length in another order."""
    recipe = ch09_imdb.Recipe(None, 0.1, mended=False, length=6)
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
    outcome = ch09_imdb.imdb_tutorial(seed=0, epochs=5, length=20, learning_rate=0.01, **SIZES)
    check_rows(outcome, ["as it was"], 5)
    assert outcome["results"]["as it was"]["accuracy"] > 0.8


def test_transformer_records_every_variant_and_their_times(small_imdb):
    """Fails if a variant or a time is missing, or nothing is learnt."""
    torch.manual_seed(0)
    rates = {"learning_rate": 0.02, "tutorial_rate": 0.01}
    names = ["mask added", "mended", "mended, attention dropout"]
    options = {"length": 20, "timed_reviews": 40, "rounds": 2, **rates, **SIZES}
    outcome = ch09_imdb.imdb_transformer(seed=0, variants=names, epochs=4, **options)
    check_rows(outcome, names, 4)
    assert all(outcome["results"][name]["accuracy"] > 0.8 for name in names)
    times = outcome["results"]["training step"]
    keys = ("tutorial", "mask_added", "mended", "mended_attention_dropout")
    assert set(times) == {f"{key}_{kind}" for key in keys for kind in ("seconds", "share")}
    assert times["tutorial_share"] == 1
    assert min(times.values()) > 0


def test_ablations_are_variants_of_the_mended_run(small_imdb):
    """Fails if a run has another model or number of epochs than it says, or times steps too."""
    for run, name in (
        (ch09_imdb.imdb_mask, "mask added"),
        (ch09_imdb.imdb_attention_dropout, "mended, attention dropout"),
    ):
        outcome = run(seed=0, epochs=2)
        check_rows(outcome, [name], 2)
        assert list(outcome["results"]) == [name]


def test_best_records_both_inputs(small_imdb):
    """Fails if a variant is missing, the pairs have no table, or nothing is learnt."""
    torch.manual_seed(0)
    outcome = ch09_imdb.imdb_best(seed=0, epochs=4, least=2, learning_rate=0.02, **SIZES)
    check_rows(outcome, ["words", "words and pairs"], 4)
    words, pairs = (outcome["results"][name] for name in ("words", "words and pairs"))
    assert (pairs["parameters"] - words["parameters"]) % 8 == 0
    assert pairs["parameters"] > words["parameters"] + 100
    assert min(words["accuracy"], pairs["accuracy"]) > 0.8


def test_test_labels_decide_nothing(small_imdb):
    """Fails if anything is chosen by the test set: with its labels turned over only the test accuracy changes."""

    def run():
        torch.manual_seed(0)
        return ch09_imdb.imdb_best(seed=2, variants=("words",), epochs=2, **SIZES)

    before = run()
    small_imdb["test"] = small_imdb["test"][0], [1 - label for label in small_imdb["test"][1]]
    after = run()
    for old, new in zip(before["history"]["words"], after["history"]["words"], strict=True):
        assert {**old, "seconds": 0} == {**new, "seconds": 0}
    right, wrong = (outcome["results"]["words"]["accuracy"] for outcome in (before, after))
    assert right == pytest.approx(1 - wrong)


def test_reviews_are_cut_at_the_right_end(small_imdb):
    """Fails if the tutorial's reviews do not keep their first words, or the mended ones' their last."""
    reviews = ch09_imdb._raw_reviews(0, 0.1)
    reviews["test"] = ["one two, three"] * 100, reviews["test"][1]
    reviews["train"][0][0] = "one two, three , two"
    first = ch09_imdb._read(reviews, ch09_imdb._between_spaces, slice(2), 50)
    last = ch09_imdb._read(reviews, ch09_imdb.tokenize, slice(-2, None), 50)
    assert [len(parts["test"][0][0]) for parts in (first, last)] == [2, 2]
    for parts in (first, last):
        assert UNK not in parts["test"][0][0]
    assert not torch.equal(first["test"][0][0], last["test"][0][0])
    assert len(reviews["train"][0]) == 270
    assert len(reviews["valid"][0]) == 30
