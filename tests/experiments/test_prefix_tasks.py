"""Tasks named by a prefix: the data against plain Python, and that every answer is scored."""

import json

import torch

from course_lib.experiments import prefix_tasks


def test_prefix_data_against_plain_python():
    """Fails if an answer is wrong, a question is trained on, or a training input is one kept for testing."""
    ids, targets = prefix_tasks.prefix_batch(4, 5, torch.Generator().manual_seed(0))
    assert ids.shape == targets.shape == (12, 11)
    answer = {"copy": list, "reverse": lambda x: x[::-1], "sort": sorted}
    for row, wanted in zip(ids.tolist(), targets.tolist(), strict=True):
        task, letters, separator = list(prefix_tasks.TASKS)[row[0] - 8], row[1:6], row[6]
        assert separator == 11
        assert wanted == [-100] * 6 + answer[task](letters)
        assert row[7:] == wanted[6:-1]
        assert sum(letters) % 8
    test = prefix_tasks.draw_inputs(5, 4, torch.Generator().manual_seed(0), test=True)
    assert (test.sum(1) % 8 == 0).all()


def test_a_prompt_without_prefix_is_one_shorter():
    """Fails if the prefix is at another place, or stays when it is left out."""
    x = torch.tensor([[3, 1, 2]])
    assert prefix_tasks.prefix_prompts(x, "sort").tolist() == [[10, 3, 1, 2, 11]]
    assert prefix_tasks.prefix_prompts(x).tolist() == [[3, 1, 2, 11]]


def test_prefix_table_scores_every_answer(monkeypatch):
    """Fails if answers are scored against the wrong task, or a prefix is not handed on."""
    monkeypatch.setattr(prefix_tasks, "prefix_answers", lambda model, x, task: prefix_tasks.TASKS[task or "copy"](x))
    table = prefix_tasks.prefix_table(None, 6, torch.Generator().manual_seed(0), 200)
    assert list(table) == ["copy", "reverse", "sort", "no prefix"]
    for task in prefix_tasks.TASKS:
        assert table[task][task] == 1
    assert table["no prefix"]["copy"] == 1
    assert table["copy"]["reverse"] < 0.1
    assert table["reverse"]["sort"] < 0.1


def test_prefix_training_learns():
    """Fails if the loss does not fall, or the record lacks a row."""
    found = prefix_tasks.gpt_prefix(0, steps=30, length=2, size=8, width=16, layers=1, heads=2, tested=5)
    json.dumps(found, allow_nan=False)
    assert list(found["results"]) == ["copy", "reverse", "sort", "no prefix", "training"]
    assert found["history"]["training"][-1]["step"] == 30
    assert found["results"]["training"]["loss"] < found["history"]["training"][0]["loss"]
