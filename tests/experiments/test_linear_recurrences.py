"""Recall and time of the layers with a state, in small: what is asked, equal states, equal numbers, the record."""

import json

import torch

from course_lib.experiments import known
from course_lib.experiments import linear_recurrences as linear
from course_lib.linear_attention import linear_attention

TINY = {"width": 12, "heads": 3, "layers": 1, "steps": 2, "batch_size": 5}


def test_all_are_announced():
    """Fails if an experiment cannot be run by name."""
    assert {"linear-recall", "linear-recall-rates", "linear-time"} <= known().keys()


def test_the_answer_is_the_digit_of_the_letter_asked_for():
    """Fails if the question is not one of the letters, letters repeat, or the answer is another pair's digit."""
    x, digit = linear.draw(50, 16, torch.Generator().manual_seed(0))
    letters, digits = x[:, :-1, :32].argmax(2), x[:, :-1, 32:].argmax(2)
    asked = x[:, -1, :32].argmax(1)
    assert all(len(set(row)) == 16 for row in letters.tolist())
    assert [digits[b][letters[b] == asked[b]].tolist() for b in range(50)] == [[d] for d in digit.tolist()]
    assert x[:, -1, 32:].sum() == 0


def test_the_commonest_digit_scores_what_is_computed():
    """Fails if the share that needs no letter is not that of drawn sequences, to four standard errors."""
    for pairs in (4, 32):
        x, digit = linear.draw(20000, pairs, torch.Generator().manual_seed(1))
        named = x[:, :-1, 32:].sum(1).argmax(1)
        assert abs((named == digit).double().mean().item() - linear.commonest_digit(pairs)) < 0.014


def test_states_are_of_equal_size():
    """Fails if a layer keeps more or fewer numbers for a text than the record says."""
    wanted = linear.state_size(12, 3)
    assert wanted == 3 * (4 * 4 + 4)
    for row in linear.ROWS[1:]:
        layer = linear.Recaller(row, 12, 3, 1).blocks[0].attn
        if row == "GRU":
            assert layer.layer(torch.rand(1, 5, 12))[1].numel() == wanted
            continue
        state = layer.step(torch.rand(1, 12))[1]
        assert sum(part.numel() for part in (state if isinstance(state, tuple) else (state,))) == wanted


def test_no_model_knows_the_order_of_the_pairs_by_attention():
    """Fails if softmax attention has positions: the order of the pairs must not change its answer."""
    torch.manual_seed(0)
    model = linear.Recaller("softmax attention", 12, 3, 1).double()
    x = linear.draw(4, 6, torch.Generator().manual_seed(0))[0].double()
    turned = torch.cat([x[:, :-1].flip(1), x[:, -1:]], 1)
    torch.testing.assert_close(model(x), model(turned))


def test_attention_learns_it():
    """Fails if training makes nothing better: four letters of 32 after 300 steps."""
    torch.manual_seed(0)
    model = linear.Recaller("softmax attention", 16, 2, 1)
    linear.train_recaller(model, 1e-2, 0, (2,), 300, 64)
    assert linear.accuracies(model, (2,), 0)[0] > 0.8


def test_the_record_has_what_the_chapter_draws():
    """Fails if a row or a number is missing, a seed gives two results, or rates are chosen on reported sequences."""
    run = lambda: linear.linear_recall(seed=1, pairs=(2, 3), **TINY)  # noqa: E731
    found = run()
    json.dumps(found, allow_nan=False)
    assert list(found["results"]) == list(linear.ROWS)
    assert all(len(row["by_pairs"]) == 2 for row in found["results"].values())
    assert run() == found
    rates = linear.linear_recall_rates(1, rates=(1e-3,), rows=("GRU",), pairs=(2, 3), **TINY)["results"]
    same = linear.recall_row("GRU", 1e-3, 1001, (2, 3), 12, 3, 1, 2, 5)
    assert rates == {"GRU 0.001": same}


def test_forms_compute_the_same():
    """Fails if the loop is not linear attention, or a form of the times has no gradient or a wrong length."""
    q, k, v = torch.randn(3, 2, 3, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(linear.attention_in_steps(q, k, v), linear_attention(q, k, v))
    found = linear.linear_time(0, lengths=(2, 4, 8), heads=2, width=4, rounds=1)["results"]
    json.dumps(found, allow_nan=False)
    assert list(found) == list(linear.forms(1, 2, 2, 4))
    assert all(len(row["seconds"]) == 3 and min(row["seconds"]) > 0 for row in found.values())
