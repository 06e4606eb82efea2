"""The translator that comes with the course, trained small on a made-up Multi30k: record, files, going on."""

import pytest
import torch

from course_lib import datasets
from course_lib.datasets import synthetic
from course_lib.experiments import multi30k, multi30k_small
from course_lib.pretrained import load_translator
from course_lib.text import tokenize

SMALL = {"merges": (60, 40), "width": 12, "heads": 3, "layers": 2, "feedforward": 16, "warm_up": 3, "epochs": 2}


@pytest.fixture
def captions(monkeypatch, tmp_path):
    """80 + 10 + 15 pairs of the toy language in place of the captions; checkpoints in a folder of their own."""
    pairs = [
        tuple(f"{' '.join(words).capitalize()}." for words in (target, source))
        for source, target, _ in synthetic.translation_pairs(105, seed=5)
    ]
    splits = {"train": pairs[:80], "valid": pairs[80:90], "test": pairs[90:]}
    monkeypatch.setattr(datasets, "multi30k", lambda split: splits[split])
    monkeypatch.setenv("COURSE_CHECKPOINTS", str(tmp_path))
    multi30k._prepared.cache_clear()
    yield splits
    multi30k._prepared.cache_clear()


def run():
    """The row and the history of one small run."""
    torch.manual_seed(0)
    outcome = multi30k_small.multi30k_small(seed=0, **SMALL, batch_size=16)
    return outcome["results"]["small Transformer"], outcome["history"]["small Transformer"]


def test_the_run_is_recorded_and_its_weights_are_kept(captions, tmp_path):
    """Fails if a metric is missing, or the files are not those of the model that was scored."""
    row, history = run()
    assert history[-1]["valid_loss"] < history[0]["valid_loss"]
    assert {"bleu", "bleu_beam", "signature", "perplexity_word", "best_epoch", "parameters"} <= set(row)
    model, german, english = load_translator(tmp_path / "translator-0")
    assert [len(german), len(english)] == row["vocabulary"]
    assert sum(p.numel() for p in model.parameters()) == row["parameters"]
    assert not list(tmp_path.glob("*.pt"))  # the checkpoint of the training has done its work


def test_the_vocabulary_cuts_as_in_training(captions, tmp_path):
    """Fails if a text gets other ids than in training."""
    run()
    _, german, english = load_translator(tmp_path / "translator-0")
    _, ids, _ = multi30k._prepared(SMALL["merges"])
    for side, subwords in enumerate((german, english)):
        texts = [pair[side] for pair in captions["train"]]
        assert [subwords.encode(text, eos=side == 0) for text in texts] == ids["train"][side]
        assert subwords.decode(subwords.encode(texts[0])) == " ".join(tokenize(texts[0]))


def test_the_scores_are_those_of_the_rounded_weights(captions, tmp_path):
    """Fails if the model is scored before its weights are rounded."""
    row, _ = run()
    model, _, _ = load_translator(tmp_path / "translator-0")
    texts, ids, _ = multi30k._prepared(SMALL["merges"])
    assert multi30k._perplexities(model, ids["test"], texts["test"], 16)["perplexity"] == row["perplexity"]
