"""Drawn texts: the statistics by hand, and that every way is recorded."""

import json

import pytest
import torch

from course_lib import datasets
from course_lib.experiments import sampling, shakespeare_gpt, shakespeare_weights
from course_lib.notebook import ledger

TEXT = "".join(
    f"\n\nSPEAKER {'ABC'[i % 3]}:\nthe cat {i % 7} saw a dog and no {i % 11} hats, so it goes" for i in range(60)
)


@pytest.fixture
def play(monkeypatch):
    """Short speeches in place of Shakespeare's."""
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: TEXT)


def test_statistics_against_hand_worked_values():
    """Fails if n-grams are counted across texts, or repetitions across texts count, or cut-off words do."""
    texts = ["abcabc", "abx"]  # abc bca cab abc, abx
    assert sampling.distinct(texts, 3) == 4 / 5
    assert sampling.repetition(texts, 3) == 1 / 5
    assert sampling.repetition(["abc", "abc"], 3) == 0
    assert sampling.repetition(["a" * 13]) == 5 / 6  # six 8-grams, all the same
    assert sampling.known_words(["The cat's a hta, the", "ca"], {"the", "cat's", "a"}) == 3 / 4


def test_likelihood_is_of_the_text_alone():
    """Fails if the prompt's tokens count, or the text is not scored after its prompt."""
    torch.manual_seed(0)
    model = shakespeare_gpt.make_gpt(9, 12, 1, 2, 8).eval()
    prompts, texts = [[1, 2, 3], [4]], [[5, 6], [7, 8, 0]]
    total = 0.0
    for prompt, text in zip(prompts, texts, strict=True):
        for i, token in enumerate(text):
            logits = model(torch.tensor([prompt + text[:i]]))[0, -1]
            total -= logits.log_softmax(-1)[token].item()
    assert sampling.negative_log_likelihood(model, prompts, texts) == pytest.approx(total / 5, rel=1e-5)


def test_speeches_need_enough_text():
    """Fails if a continuation is shorter than asked for, or too few speeches are no error."""
    found = sampling.speeches(TEXT, 4, 30)
    assert len(found) == 4
    for name, text in found:
        assert name.startswith("SPEAKER")
        assert len(text) == 30
        assert name + text in TEXT
    with pytest.raises(ValueError, match="wanted 4 speeches followed by 30000 characters, found 0"):
        sampling.speeches(TEXT, 4, 30_000)


def test_sampling_records_every_way(play):
    """Fails if a way is missing, its text is of another length, or greedy decoding is not the least varied."""
    sizes = {"layers": 1, "heads": 2, "width": 16, "block": 40, "batch_size": 3, "texts": 3, "length": 25}
    results = sampling.gpt_sampling(0, **sizes, steps=60, schedule=60, learning_rate=0.01)["results"]
    json.dumps(results, allow_nan=False)
    assert list(results) == ["model", "real text", *sampling.WAYS]
    assert results["real text"]["sample"] in TEXT
    for way in sampling.WAYS:
        assert len(results[way]["sample"]) == len("SPEAKER A:\n") + 25
    assert results["greedy"]["nll"] < results["pure sampling"]["nll"] < results["temperature 1.3"]["nll"]


def test_the_speaker_is_the_shipped_model(play, monkeypatch):
    """Fails if the speaker's texts come from other weights, or a seed changes more than the draws."""
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    model = shakespeare_gpt.make_gpt(len(letters), 60, 1, 2, 16).eval()
    monkeypatch.setattr(sampling, "load_shakespeare", lambda: (model, letters))
    first, second = (sampling.speaker_sampling(seed, texts=3, length=25)["results"] for seed in (0, 1))
    assert list(first) == ["real text", *sampling.WAYS]
    assert first["real text"]["sample"] in TEXT
    assert first["greedy"] == second["greedy"]
    assert first["pure sampling"]["sample"] != second["pure sampling"]["sample"]


def test_the_model_is_the_shipped_one_early_in_its_training(play, monkeypatch, tmp_path):
    """Fails if the first screen's texts come from another run than the early row of `shakespeare-weights`."""
    monkeypatch.setenv("COURSE_CHECKPOINTS", str(tmp_path))
    monkeypatch.setattr(shakespeare_weights, "PROMPT", "SPEAKER A:\n")  # in the letters of the short speeches
    sizes = {"layers": 1, "heads": 2, "width": 8, "block": 40, "batch_size": 3}
    early = shakespeare_weights.shakespeare_weights(2, **sizes, steps=9, early=4, new=5, chunk=3)["results"]["early"]
    found = sampling.gpt_sampling(2, **sizes, steps=4, schedule=9, texts=1, length=12)["results"]["model"]
    assert found["valid_loss"] == pytest.approx(early["valid_loss"], rel=1e-6)


def test_the_recorded_models_are_the_shipped_ones_early_in_their_training():
    """Fails if a record of `gpt-sampling` is of other settings, or of a model with another loss."""
    drawn, shipped = ledger.load("gpt-sampling"), ledger.load("shakespeare-weights")
    equal = ("layers", "heads", "width", "block", "batch_size", "learning_rate")
    assert [drawn["config"][key] for key in equal] == [shipped["config"][key] for key in equal]
    assert drawn["config"]["steps"] == shipped["config"]["early"]
    assert drawn["config"]["schedule"] == shipped["config"]["steps"]
    early = shipped["runs"][0]["results"]["early"]["valid_loss"]
    assert drawn["runs"][0]["results"]["model"]["valid_loss"] == pytest.approx(early, abs=1e-3)
