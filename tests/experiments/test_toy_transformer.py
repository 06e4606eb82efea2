"""Chapter 09's toy runs: the data are apart, the measures are what they say, the record has what the chapter draws."""

import pytest
import torch

from course_lib.experiments import toy_transformer, toy_translation
from course_lib.text import EOS, PAD, SOS, pad_batch


@pytest.fixture(scope="module")
def task():
    return toy_translation.toy_task(pairs=150, test=40, seed=3)


def test_cross_maps_are_of_the_real_words(task):
    """Fails if a map has rows or columns of padding, or another sentence's shape."""
    torch.manual_seed(0)
    model = toy_transformer.toy_translator(task, width=8, heads=2, layers=2)
    layers = toy_transformer.cross_maps(model, task)
    assert len(layers) == 2
    for maps in layers:
        for weights, source, target in zip(maps, *task.test, strict=True):
            assert weights.shape == (2, len(target), len(source))
            assert torch.allclose(weights.sum(-1), torch.ones(2, len(target)), atol=1e-5)


def test_alignment_of_perfect_maps_is_one(task, monkeypatch):
    """Fails if a row is compared with another word's truth, or heads are not scored one by one."""

    def perfect(model, task):
        maps = []
        for source, pair in zip(task.test[0], task.test_pairs, strict=True):
            right = torch.eye(len(source))[pair.alignment]
            maps.append(torch.stack([right, right.flip(-1) * 0.5]))
        return [maps]

    monkeypatch.setattr(toy_transformer, "cross_maps", perfect)
    found = toy_transformer.cross_alignment(None, task)
    assert found["alignment"] == found["alignment_best"] == found["alignment_head"][0] == 1
    assert found["alignment_head"][1] < 0.5


def test_prefix_rows_keep_the_languages_apart(task):
    """Fails if source and target ids overlap, or mark and end are missing."""
    model = toy_transformer.PrefixTranslator(task, width=8, heads=2, layers=1)
    row = model.rows([[5, 6, EOS]], [[7, 8]])[0]
    assert row == [5, 6, EOS, model.first + SOS, model.first + 7, model.first + 8, model.first + EOS]
    assert model.first == len(task.source_vocab)


def test_prefix_loss_scores_target_words_alone(task):
    """Fails if source words, the mark or padding are scored, or `<eos>` is not."""
    torch.manual_seed(0)
    model = toy_transformer.PrefixTranslator(task, width=8, heads=2, layers=1)
    rows = model.rows([[5, 6, EOS], [5, EOS]], [[7, 8], [9]])
    found = toy_transformer.prefix_loss(model, pad_batch(rows))
    assert found["count"] == 5
    wide = toy_transformer.prefix_loss(model, pad_batch(rows, 15))
    assert torch.allclose(found["loss"], wide["loss"], atol=1e-4)
    by_hand = 0.0
    for row, first in zip(rows, (3, 2), strict=True):
        log_probs = model.lm(torch.tensor([row]))[0].log_softmax(-1)
        by_hand -= sum(log_probs[t, row[t + 1]].item() for t in range(first, len(row) - 1))
    assert found["loss"].item() == pytest.approx(by_hand, abs=1e-3)


def test_prefix_translations_are_those_of_each_sentence_alone(task):
    """Fails if a batch mixes lengths, or words after `<eos>` are kept."""
    torch.manual_seed(0)
    model = toy_transformer.PrefixTranslator(task, width=8, heads=2, layers=1)
    toy_transformer.train_prefix(model, task, 1)
    found = model.translate(task.test[0][:6], max_len=9)
    assert found == [model.translate([source], max_len=9)[0] for source in task.test[0][:6]]
    assert all(EOS not in words and len(words) <= 9 for words in found)
    assert PAD not in found[0] or len(found[0]) == 9


def test_the_record_has_what_the_chapter_draws():
    """Fails if a variant or a metric that notebook 09 reads is missing."""
    outcome = toy_transformer.transformer_toy(0, reviews=20, review_epochs=1, pairs=40, test=10, epochs=1, width=8)
    for name in ("mean", "max", "cls", "mean, no mask"):
        assert {"parameters", "accuracy", "accuracy_padded_to_150"} <= set(outcome["results"][name])
        assert [entry["epoch"] for entry in outcome["history"][name]] == [1]
    assert {"exact", "bleu", "alignment", "alignment_head"} <= set(outcome["results"]["encoder-decoder"])
    assert {"exact", "bleu", "parameters"} <= set(outcome["results"]["decoder-only"])


def test_passes_are_recorded_epoch_by_epoch():
    """Fails if a model or the exact translations after an epoch are missing."""
    options = {"pairs": 40, "test": 10, "epochs": 2, "width": 8, "rates": (2e-3, 5e-3)}
    outcome = toy_transformer.toy_passes(0, **options)
    assert set(outcome["results"]) == {"GRU with attention", "Transformer, rate 0.002", "Transformer, rate 0.005"}
    for name, entries in outcome["history"].items():
        assert [entry["epoch"] for entry in entries] == [1, 2], name
        assert all(0 <= entry["exact"] <= 1 for entry in entries)
        assert outcome["results"][name]["exact"] == entries[-1]["exact"]
