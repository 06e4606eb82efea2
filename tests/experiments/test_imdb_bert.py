"""The recorded runs of chapter 12 on IMDB's reviews, on miniature reviews."""

import math

import pytest
import torch
import torch.nn.functional as F

from course_lib import datasets
from course_lib.bert import BERTForPreTraining, masked_lm_loss
from course_lib.experiments import checkpoints, imdb_bert, imdb_voting
from course_lib.positional import ALiBi
from tests.helpers import imdb as fake

PRETRAINING = {
    "vocab_size": 12,
    "length": 8,
    "width": 8,
    "layers": 1,
    "heads": 2,
    "predicted": 10,
    "rare": 0.05,
    "share": 0.5,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "warmup": 5,
    "pieces": 3,
    "decay_pieces": 4,
    "steps": 20,
    "held_out": 30,
}
FINE_TUNING = {
    "length": 20,
    "read": 24,
    "batch_size": 16,
    "word_dropout": 0.1,
    "dropout": 0.1,
    "pre-trained": {"epochs": 3, "learning_rate": 1e-2},
    "from scratch": {"epochs": 4, "learning_rate": 2e-2},
}
BAG = {"least": 2, "strengths": (1e-3,), "steps": 4}
SIZES = {"pretraining": PRETRAINING, "fine_tuning": FINE_TUNING}
SCORES = {"accuracy", "accuracy_unseen", "seen"}


@pytest.fixture
def small_imdb(monkeypatch, tmp_path):
    """300 + 100 + 200 reviews in place of IMDB's, and an empty folder for what is kept."""
    splits = fake.splits(train=300, test=100, unsup=200)
    monkeypatch.setattr(datasets, "imdb", lambda split: splits[split])
    monkeypatch.setenv("COURSE_CHECKPOINTS", str(tmp_path / "kept"))
    return splits


def texts():
    """All rows that the miniature BERT reads."""
    _, train, unlabelled = imdb_bert._text(PRETRAINING["vocab_size"])
    return train + unlabelled


# --- text ---------------------------------------------------------------------------


def test_windows_are_the_reviews_one_after_the_other():
    """Fails if a review is lost, repeated or in its old place, or <sep> does not end each."""
    rows = [torch.full((1 + i,), 10 + i) for i in range(6)]  # 21 words and 6 ends
    windows = imdb_bert._windows(rows, 9, torch.Generator().manual_seed(0))
    assert windows.shape == (3, 9)
    text = windows.flatten()
    assert text[-1] == imdb_bert.SEP
    found = [
        row[:-1].tolist()
        for row in text.split((text == imdb_bert.SEP).nonzero()[:, 0].diff(prepend=torch.tensor([-1])).tolist())
    ]
    assert sorted(found) == [row.tolist() for row in rows]
    assert found != [row.tolist() for row in rows]


def test_rare_words_are_chosen_more_often():
    """Fails if the chance is not the square root of rare / share, or a special or rare word may be a target."""
    windows = torch.tensor([[0, 1, 2, 3] + 8 * [4] + 2 * [5] + [6, 7]])
    chances = imdb_bert._chances(windows, vocab_size=9, predicted=3, rare=1 / 8)
    torch.testing.assert_close(chances, torch.tensor([0, 0, 0, 0, 0.5, 1, 1, 0, 0]))


def test_masked_words_are_a_share_of_the_chosen_ones():
    """Fails if words are chosen with another probability than chance times share: within 5 standard deviations."""
    windows = torch.tensor([5, 6, 8]).repeat(20, 400)
    chances = torch.tensor([0, 0, 0, 0, 0, 0.5, 1, 0, 0])
    inputs, targets = imdb_bert._masked(windows, chances, 0.4, torch.Generator().manual_seed(0))
    for word, chance in ((5, 0.2), (6, 0.4), (8, 0.0)):
        share = (targets == word).sum().item() / 8000
        assert abs(share - chance) <= 5 * math.sqrt(chance * (1 - chance) / 8000)
    hidden = (inputs == imdb_bert.MASK).sum() / (targets >= 0).sum()
    assert abs(hidden - 0.8) < 5 * math.sqrt(0.8 * 0.2 / 4800)


def test_valid_targets_are_hidden():
    """Fails if a visible or a replaced word counts in the validation loss."""
    inputs = torch.tensor([[5, 2, 7, 2, 2]])
    _, targets = imdb_bert._hidden(inputs, torch.tensor([[5, 6, 4, -100, 8]]))
    assert targets.tolist() == [[-100, 6, -100, -100, 8]]


# --- pre-training -------------------------------------------------------------------


def test_network_looks_near_from_the_start():
    """Fails if ALiBi is not in the scores, or the matrices start as small as those of a wide BERT."""
    torch.manual_seed(0)
    bert = imdb_bert._make_bert(PRETRAINING | {"width": 48, "heads": 3, "length": 30})
    ids = torch.randint(4, 16, (2, 30))
    near = bert(ids)
    for layer in bert.encoder.layers:
        torch.testing.assert_close(layer.self_attn.position.bias(30, 30), ALiBi(3).bias(30, 30))
        layer.self_attn.position = None
    assert (near - bert(ids)).abs().max() > 0.1
    for name, parameter in bert.named_parameters():
        if parameter.ndim == 2 and "embedding" not in name:
            assert parameter.std().item() == pytest.approx(parameter.shape[1] ** -0.5, rel=0.1)


def test_restricted_loss_is_berts_over_fewer_words():
    """Fails if the short output layer is not BERT's: with all rows equal, with fewer the softmax over those."""
    torch.manual_seed(0)
    model = BERTForPreTraining(imdb_bert._make_bert(PRETRAINING)).double()
    inputs, targets = torch.randint(4, 16, (3, 8)), torch.full((3, 8), -100)
    targets[0, 2], targets[2, 5], targets[2, 6] = 7, 4, 9
    full = masked_lm_loss(model, (inputs, torch.ones_like(inputs).bool(), targets))
    ours = imdb_bert._restricted_loss(model, (inputs, targets), rows=16)
    torch.testing.assert_close(ours["loss"], full["loss"])
    assert (ours["count"], ours["accuracy"]) == (full["count"], full["accuracy"])
    logits, _ = model(inputs, positions=targets >= 0)
    wanted = F.cross_entropy(logits[:, :10], torch.tensor([7, 4, 9]), reduction="sum")
    torch.testing.assert_close(imdb_bert._restricted_loss(model, (inputs, targets), rows=10)["loss"], wanted)


def test_pretraining_learns_and_counts_tokens(small_imdb):
    """Fails if a piece is missing, its tokens are counted wrong, or the held-out loss does not fall."""
    _, history = imdb_bert._pretrain(texts(), PRETRAINING, seed=0)
    assert [entry["piece"] for entry in history] == [1, 2, 3]
    assert [entry["tokens"] for entry in history] == [1280, 2560, 3840]
    assert history[-1]["valid_loss"] < history[0]["valid_loss"] - 0.05
    assert history[-1]["valid_accuracy"] > 0.15


def test_stopped_pretraining_goes_on_with_the_same_bits(small_imdb, monkeypatch, tmp_path):
    """Fails if a resumed run starts again, skips a piece, or ends with other weights than one in a single go."""
    whole, _ = imdb_bert._pretrain(texts(), PRETRAINING, seed=1)
    monkeypatch.setenv("COURSE_CHECKPOINTS", str(tmp_path / "again"))
    original, saved = checkpoints.save_part, []

    def save_and_die(*arguments):
        original(*arguments)
        saved.append(arguments)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(imdb_bert, "save_part", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        imdb_bert._pretrain(texts(), PRETRAINING, seed=1)
    resumed, history = imdb_bert._pretrain(texts(), PRETRAINING, seed=1)
    assert len(saved) == 3
    assert len(history) == 3
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_other_settings_are_refused(small_imdb):
    """Fails if weights of another pre-training are taken for the wanted ones."""
    short = PRETRAINING | {"pieces": 1}
    imdb_bert._pretrain(texts(), short, seed=0)
    with pytest.raises(ValueError, match=r"imdb-bert-text-0\.pt was made with .*delete it"):
        imdb_bert._pretrain(texts(), short | {"share": 0.3}, seed=0)


def test_pieces_make_whole_passes():
    """Fails if pieces do not go on where the last one ended, or a pass misses or repeats a window."""
    settings = PRETRAINING | {"seed": 0, "steps": 3}
    windows = torch.arange(4, 4 + 41)[:, None].repeat(1, 8)  # five batches of eight a pass, one window left over
    chances = torch.full((45,), 0.0)
    chances[4:] = 1e-9  # (nearly) nothing is masked
    chances[4] = 1.0
    windows[:, 0] = 4
    rows = [inputs[:, 1] for piece in (1, 2) for inputs, _ in imdb_bert._piece(windows, settings, chances, piece)]
    assert len(rows) == 6
    first = torch.cat(rows[:5]).tolist()
    assert len(set(first)) == 40
    assert set(rows[5].tolist()) != set(rows[0].tolist())


# --- fine-tuning --------------------------------------------------------------------


def test_classifier_is_the_mean_over_windows():
    """Fails if windows are cut wrong, empty ones count, or padding takes part: against one review at a time."""
    torch.manual_seed(0)
    model = imdb_bert._classifier(PRETRAINING, 0.3, seed=0).double().eval()
    lengths = [19, 3, 8, 11]
    mask = torch.arange(19) < torch.tensor(lengths)[:, None]
    ids = torch.randint(4, 16, (4, 19)).masked_fill(~mask, 1)
    logits = model(ids, mask)
    for row, length in enumerate(lengths):
        windows = ids[row, :length].split(7)  # 19 tokens make three windows of at most 8: 7 each
        vectors = torch.cat([model.bert(window[None])[0] for window in windows])
        torch.testing.assert_close(logits[row], model.classifier(vectors.mean(0)))


def test_pretrained_weights_are_copied():
    """Fails if the pre-trained trunk is not used, or fine-tuning changes the one that others will use."""
    bert = imdb_bert._make_bert(PRETRAINING)
    before = [parameter.clone() for parameter in bert.parameters()]
    model = imdb_bert._classifier(PRETRAINING, 0.0, 0, bert)
    for ours, theirs in zip(model.bert.parameters(), before, strict=True):
        assert torch.equal(ours, theirs)
    rows = [torch.arange(4, 9), torch.arange(6, 16)]
    imdb_bert._fine_tune(model, rows, [0, 1], FINE_TUNING, 0, epochs=1, learning_rate=0.1)
    for ours, theirs in zip(bert.parameters(), before, strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(model.bert.embedding.token.weight, bert.embedding.token.weight)


def test_sure_guesses_become_labels():
    """Fails if an unsure review is taken, a sure one left out, or a label is the wrong way round."""
    parts = {"train": ([torch.tensor([4])], [1]), "unsup": ([torch.tensor([5 + i]) for i in range(4)], None)}
    rows, labels = imdb_bert._pseudo_labelled(parts, torch.tensor([-3.0, 2.0, 2.3, -0.1]), sure=0.9)
    assert [row.item() for row in rows] == [4, 5, 7]
    assert labels == [1, 0, 1]


# --- the runs -----------------------------------------------------------------------


def test_imdb_bert_records_every_row(small_imdb):
    """Fails if a row, a column or a history is missing, or nothing is learnt."""
    outcome = imdb_bert.imdb_bert(seed=0, bag=BAG, sure=0.6, **SIZES)
    results, history = outcome["results"], outcome["history"]
    assert list(history) == ["pre-training", "pre-trained", "from scratch"]
    names = ["pre-trained", "from scratch", "bag of pairs", "pre-trained, with pairs"]
    assert list(results) == [*names, "self-trained bag of pairs", "self-trained, with pairs"]
    for row in results.values():
        assert row.keys() >= SCORES | {"valid_accuracy"}
        assert row["seen"] == 3
        assert row["accuracy"] > 0.8
    for name in ("pre-trained", "from scratch"):
        assert len(history[name]) == results[name]["epochs"] == FINE_TUNING[name]["epochs"]
        assert results[name]["train_seconds"] == pytest.approx(sum(entry["seconds"] for entry in history[name]))
    assert 270 < results["self-trained bag of pairs"]["reviews"] <= 470


def test_imdb_bert_gpu_records_what_the_chapter_draws(small_imdb):
    """Fails if a row is missing, a pass or a piece has no accuracy or loss, or the runs of `imdb_bert` are taken."""
    imdb_bert.imdb_bert(seed=0, variants=("pre-trained",), steps_up=(), **SIZES)
    longer = {"pretraining": PRETRAINING | {"pieces": 2, "decay_pieces": 2}, "fine_tuning": FINE_TUNING}
    outcome = imdb_bert.imdb_bert_gpu(seed=0, bag=BAG, bf16=False, **longer)
    results, history = outcome["results"], outcome["history"]
    assert list(results) == ["pre-trained", "from scratch", "bag of pairs", "pre-trained, with pairs"]
    for row in results.values():
        assert row["accuracy"] > 0.8
    assert [(entry["tokens"], entry["valid_loss"] > 0) for entry in history["pre-training"]] == [
        (1280, True),
        (2560, True),
    ]
    for name in ("pre-trained", "from scratch"):
        entries = history[name]
        assert len(entries) == results[name]["epochs"] == FINE_TUNING[name]["epochs"]
        assert all(0 <= entry[key] <= 1 for entry in entries for key in ("train_accuracy", "valid_accuracy"))
        assert results[name]["valid_accuracy"] == entries[-1]["valid_accuracy"]


def test_second_run_takes_what_is_kept(small_imdb, monkeypatch):
    """Fails if finished parts are computed again, or come back with other numbers."""
    first = imdb_bert.imdb_bert(seed=0, bag=BAG, sure=0.6, **SIZES)
    monkeypatch.setattr(imdb_bert, "train_epoch", None)
    monkeypatch.setattr(imdb_voting, "best_strength", None)
    assert imdb_bert.imdb_bert(seed=0, bag=BAG, sure=0.6, **SIZES) == first


def test_test_labels_decide_nothing(small_imdb, monkeypatch, tmp_path):
    """Fails if anything is chosen by the test set: with its labels turned over only the test accuracy changes."""
    before = imdb_bert.imdb_bert(seed=2, bag=BAG, sure=0.6, **SIZES)["results"]
    small_imdb["test"] = small_imdb["test"][0], [1 - label for label in small_imdb["test"][1]]
    monkeypatch.setenv("COURSE_CHECKPOINTS", str(tmp_path / "again"))
    after = imdb_bert.imdb_bert(seed=2, bag=BAG, sure=0.6, **SIZES)["results"]
    for name, row in before.items():
        same = row.keys() - {"accuracy", "accuracy_unseen", "train_seconds"}
        assert {key: row[key] for key in same} == {key: after[name][key] for key in same}
        assert row["accuracy"] == pytest.approx(1 - after[name]["accuracy"])


def test_curves_record_each_number_of_labels(small_imdb):
    """Fails if a row is missing, or more labels teach nothing."""
    settings = {key: FINE_TUNING[key] for key in ("length", "batch_size", "word_dropout", "dropout")}
    rates = {"pre-trained": 1e-2, "from scratch": 2e-2}
    outcome = imdb_bert.imdb_bert_curves(
        seed=1, sizes=(10, 200), epochs=(2, 4), tested=80, rates=rates, pretraining=PRETRAINING, fine_tuning=settings
    )
    names = [f"{name}, {size} labels" for size in (10, 200) for name in rates]
    assert list(outcome["results"]) == names
    assert [row["labels"] for row in outcome["results"].values()] == [10, 10, 200, 200]
    assert outcome["results"]["pre-trained, 200 labels"]["accuracy"] > 0.8
