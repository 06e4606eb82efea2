"""Wider and wider beams of the course's translator, on a few captions of the toy language."""

import pytest

from course_lib import datasets
from course_lib.experiments.multi30k_beams import multi30k_beams


@pytest.fixture
def captions(monkeypatch):
    """Four captions in place of the 1,000."""
    german = ["ein hund läuft .", "zwei männer spielen im schnee .", "eine frau liest ein buch .", "ein kind springt ."]
    english = ["a dog runs.", "two men play in the snow.", "a woman reads a book.", "a child jumps."]
    monkeypatch.setattr(datasets, "multi30k", lambda split: list(zip(german, english, strict=True)))


def test_the_record(captions):
    """Fails if a metric is missing, greedy differs from itself, or a length penalty prefers shorter sentences."""
    results = multi30k_beams(seed=0, beams=(1, 3), alphas=(0.0, 2.0))["results"]
    assert results["references"] == {"words": 5.25}
    assert set(results) == {"references", *(f"beam {k}, alpha {a}" for k in (1, 3) for a in (0, 2))}
    greedy, wide, long = (results[f"beam {k}, alpha {a}"] for k, a in ((1, 0), (3, 0), (3, 2)))
    assert greedy["more_probable"] == greedy["less_probable"] == 0
    assert greedy["finished"] == wide["finished"] == 1
    assert wide["log_p"] >= long["log_p"]
    assert wide["words"] <= long["words"]
    assert all(0 <= row["bleu"] <= 100 for row in (greedy, wide, long))
