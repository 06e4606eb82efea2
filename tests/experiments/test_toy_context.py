"""Chapter 06's runs on what the decoder is given: equal encoders, equal updates, and a record with what is drawn."""

import pytest
import torch

from course_lib.experiments import toy_context
from course_lib.experiments.toy_translation import toy_task

SMALL = {"pairs": 60, "test": 30, "epochs": 2, "batch_size": 30}


def test_models_differ_in_what_the_decoder_is_given_and_in_nothing_else():
    """Fails if the encoders differ, or one vector is more than one, or is shown at the wrong steps."""
    task = toy_task(pairs=30, test=3)
    models = {given: toy_context.context_translator(task, given, width=6, states=4) for given in toy_context.GIVEN}
    shapes = [[tuple(p.shape) for p in model.encoder.parameters()] for model in models.values()]
    assert shapes[0] == shapes[1] == shapes[2]
    assert [model.decoder.layer.hidden_size for model in models.values()] == [6, 6, 6]
    assert [model.decoder.layer.input_size for model in models.values()] == [6, 10, 10]
    states, context = torch.zeros(2, 5, 4), torch.zeros(2, 4)
    for given, model in models.items():
        assert ("keys" in model.decoder.start(states, context)) == (given == "attention")
    both = toy_context.context_translator(task, "once", width=6, states=4, bidirectional=True)
    assert both.encoder.layer.bidirectional
    assert both.encoder.output_size == 4
    with pytest.raises(ValueError, match="given is one of"):
        toy_context.context_translator(task, "twice")


def test_the_records_have_what_the_chapter_draws():
    """Fails if a variant or metric is missing, or models differ in their updates."""
    outcome = toy_context.toy_context(seed=1, width=6, **SMALL)
    assert list(outcome["results"]) == [
        "once", "every step", "attention", *(f"{given}, two directions" for given in toy_context.GIVEN),
    ]  # fmt: skip
    for name, row in outcome["results"].items():
        assert {"parameters", "exact", "bleu", "length", "bleu_by_length", "seconds"} <= set(row)
        assert row["updates"] == 4
        assert [entry["updates"] for entry in outcome["history"][name]] == [2, 4]
        assert all("bleu" in entry for entry in outcome["history"][name])
    narrow = toy_context.toy_bottleneck(seed=1, width=6, states=(2, 4), **SMALL)["results"]
    assert list(narrow) == ["every step, E = 2", "attention, E = 2", "every step, E = 4", "attention, E = 4"]
    assert len({row["parameters"] for row in narrow.values()}) == 4
