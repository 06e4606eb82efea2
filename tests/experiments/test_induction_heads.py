"""Induction heads in small: the sequences, what the scores measure, and the record's form."""

import json
import math

import pytest
import torch
from torch import nn

from course_lib.attention import MultiHeadAttention
from course_lib.experiments import induction_heads as induction
from course_lib.experiments import known
from course_lib.utils import number_of_parameters


def test_the_second_half_goes_round_the_first():
    """Fails if the halves differ in more than where they start, or all start at the same place."""
    ids, places = induction.draw(40, 7, 50, torch.Generator().manual_seed(0))
    starts = set()
    for row, where in zip(ids.tolist(), places.tolist(), strict=True):
        start = where[0]
        assert row[7:] == row[start:7] + row[:start]
        starts.add(start)
    assert len(starts) > 4


class Constructed(MultiHeadAttention):
    """Head 0 looks at the token before, head 1 at the one that followed this token in the first half."""

    def __init__(self, ids, places):
        super().__init__(4, 2)
        B, T, n = len(ids), ids.shape[1] - 1, places.shape[1]
        self.maps = torch.full((B, 2, T, T), 0.0)
        for t in range(1, T):
            self.maps[:, 0, t, t - 1] = 1.0
        for b in range(B):
            for t in range(n, T):
                self.maps[b, 1, t, places[b, t - n + 1]] = 0.75

    def attention_weights(self, *args, **options):
        """Those written above, whatever is asked."""
        return self.maps


def test_scores_are_of_the_right_places():
    """Fails if a score is read at a wrong place, or over the wrong tokens: known maps have known scores."""
    torch.manual_seed(0)
    ids, places = induction.draw(3, 5, 9, torch.Generator().manual_seed(0))
    model = induction.AttentionOnly(9, 10, 4, 2, 1)
    model.layers = nn.ModuleList([Constructed(ids, places)])
    found = induction.scores(model, ids, places)
    assert found["previous"][0][0] == pytest.approx(1)
    assert found["induction"][0][1] == pytest.approx(0.75)
    assert found["previous"][0][1] < 0.5
    assert found["induction"][0][0] < 0.5


def test_losses_are_of_their_halves():
    """Fails if a half's loss has another's tokens: one that knows nothing but the second half is right there only."""
    ids, places = induction.draw(3, 5, 9, torch.Generator().manual_seed(0))
    model = induction.AttentionOnly(9, 10, 8, 2, 1)
    sure = torch.zeros(3, 9, 9)
    sure[:, 5:].scatter_(2, ids[:, 6:, None], 100.0)
    model.head = nn.Identity()
    model.norm = type("Sure", (nn.Module,), {"forward": lambda self, x: sure})()
    found = induction.scores(model, ids, places)
    assert found["first_loss"] == pytest.approx(math.log(9))
    assert found["second_loss"] == pytest.approx(0, abs=1e-6)


def test_bag():
    """Fails if it is not the entropy of the first half's counts."""
    ids, places = torch.tensor([[3, 3, 5, 7, 3, 5, 7, 3]]), torch.tensor([[1, 2, 3, 0]])
    wanted = -(2 * math.log(1 / 4) + math.log(2 / 4)) / 3
    assert induction.bag_loss(ids, places) == pytest.approx(wanted)


def test_two_layers_find_it():
    """Fails if a small model with two layers cannot learn the task, or what is learnt is not such a head."""
    options = {"n": 8, "vocab_size": 12, "head_dim": 8, "steps": 600, "every": 600, "test_size": 64}
    results = induction.induction_heads(0, rows=("two layers",), **options, learning_rate=6e-3)["results"]
    assert results["two layers"]["second_loss"] < 0.7 * results["bag"]["second_loss"]
    assert max(results["two layers"]["induction"][1]) > 0.2  # of 8 tokens and more


def test_the_wide_layer_has_more_parameters_than_two():
    """Fails if one layer is at a disadvantage by its size, at that of the record."""
    counts = {}
    for row, (layers, heads) in induction.ROWS.items():
        counts[row] = number_of_parameters(induction.AttentionOnly(64, 48, 16 * heads, heads, layers))
    assert counts["one layer"] < counts["two layers"] < counts["one layer, wide"]


def test_record():
    """Fails if a row or a number is missing, or a seed gives two results."""
    assert "induction-heads" in known()
    run = lambda: induction.induction_heads(  # noqa: E731
        1, n=4, vocab_size=9, head_dim=2, batch_size=3, steps=5, every=2, test_size=6
    )
    found = run()
    json.dumps(found, allow_nan=False)
    results, history = found["results"], found["history"]
    assert list(results) == ["bag", *history]
    for row, entries in history.items():
        assert [entry["step"] for entry in entries] == [0, 2, 4, 5]
        layers, heads = induction.ROWS[row]
        assert [len(found) for found in entries[0]["induction"]] == [heads] * layers
        assert entries[-1]["best_induction"] == max(results[row]["induction"][-1])
        assert entries[-1]["best_previous"] == max(results[row]["previous"][0])
    assert run() == found
