"""Chapter 06's toy runs: the data are apart, the measures are what they say, the record has what the chapter draws."""

import pytest
import torch

from course_lib import metrics
from course_lib.experiments import toy_translation
from course_lib.text import EOS, PAD


@pytest.fixture(scope="module")
def task():
    return toy_translation.toy_task(pairs=150, test=40, seed=3)


@pytest.fixture
def model(task):
    torch.manual_seed(2)
    return toy_translation.translator(task, attention=True, width=8)


def logits_for(words, V=9):
    """Logits whose largest entry is at the given ids (B, T)."""
    return torch.eye(V)[torch.tensor(words)]


def test_no_test_sentence_is_trained_on(task):
    """Fails if train and test overlap, or a source lacks its <eos>."""
    assert not {tuple(row) for row in task.train[0]} & {tuple(row) for row in task.test[0]}
    assert all(row[-1] == EOS and EOS not in row[:-1] for row in task.train[0])
    assert [len(row) for row in task.test[1]] == [len(pair.target) for pair in task.test_pairs]


def test_models_have_what_their_names_say(task):
    """Fails if the model without attention gets more than one vector, or that with attention reads one way only."""
    one, many = (toy_translation.translator(task, attention, width=8) for attention in (False, True))
    states, context = torch.zeros(2, 5, 8), torch.zeros(2, 8)
    assert not any(key in one.decoder.start(states, context) for key in ("states", "keys"))
    assert many.encoder.layer.bidirectional
    assert one.encoder.output_size == many.encoder.output_size == 8


def test_training_learns_and_counts_its_updates(task):
    """Fails if the loss does not fall, the share of true words is not asked for, or updates are not counted."""
    torch.manual_seed(0)
    model = toy_translation.translator(task, attention=False, width=12)
    history = toy_translation.train_translator(
        model, task, 3, batch_size=20, teacher_forcing=lambda epoch: 1 / epoch, measure=lambda m: {"mark": 5}
    )
    assert [entry["teacher_forcing"] for entry in history] == [1, 1 / 2, 1 / 3]
    assert [entry["updates"] for entry in history] == [8, 16, 24]
    assert all(entry["mark"] == 5 for entry in history)
    assert history[-1]["train_loss"] < history[0]["train_loss"]


def test_scores_of_a_perfect_and_of_a_dumb_translator(task, monkeypatch):
    """Fails if hypotheses are compared with other sentences, or the groups are not by source length."""

    class Found:
        def __init__(self, tokens):
            self.tokens = tokens

    monkeypatch.setattr(
        toy_translation, "translate", lambda model, sources, **kw: [Found(t) for t in targets[: len(sources)]]
    )
    targets = task.test[1]
    assert toy_translation.translation_scores(None, task) == {
        "exact": 1,
        "bleu": pytest.approx(100),
        "right": [True] * 40,
    }
    assert toy_translation.translation_scores(None, task, first=7)["right"] == [True] * 7
    targets = [[PAD]] * 40
    assert toy_translation.translation_scores(None, task) == {"exact": 0, "bleu": 0, "right": [False] * 40}
    # all sentences of eight words right, all others wrong; three copies of the test set make the groups large enough
    big = task._replace(test=tuple(side * 12 for side in task.test), test_pairs=task.test_pairs * 12)
    targets = [t if len(p.source) == 8 else [PAD] for t, p in zip(*[big.test[1], big.test_pairs], strict=True)]
    found = toy_translation.scores_by_length(None, big)
    assert found["length"] == sorted(found["length"])
    assert min(found["sentences"]) >= 20
    wanted = [1.0 if length == 8 else 0.0 for length in found["length"]]
    assert found["exact_by_length"] == wanted
    assert sum(wanted) == 1
    assert found["bleu_by_length"] == pytest.approx([100 * value for value in wanted])


def test_perplexity_and_accuracy_leave_padding_out():
    """Fails if padding is counted: row 1 has one real token, which is right."""
    logits, target = logits_for([[4, 5], [6, 8]]).double(), torch.tensor([[4, 7], [6, 1]])
    mask = torch.tensor([[True, True], [True, False]])
    found = toy_translation.perplexity_and_accuracy(logits, target, mask)
    assert found["accuracy"] == pytest.approx(2 / 3)
    right, wrong = logits.log_softmax(-1)[0, 0, 4], logits.log_softmax(-1)[0, 1, 7]
    assert found["perplexity"] == pytest.approx(torch.exp(-(2 * right + wrong) / 3).item())


def test_after_first_mistake_by_hand():
    """Fails if the mistake itself is counted, or padding, or sentences without a mistake."""
    target = torch.tensor([[4, 5, 6, 7], [4, 5, 6, 1], [4, 5, 6, 7]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]).bool()
    free = logits_for([[8, 5, 8, 7], [4, 8, 8, 1], [4, 5, 6, 7]])
    forced = logits_for([[8, 5, 6, 8], [4, 8, 6, 1], [4, 5, 6, 7]])
    by_forced, by_free = toy_translation.after_first_mistake(forced, free, target, mask, steps=3)
    assert by_forced == [1.0, 1.0, 0.0]  # (5, 6), (6), (7 missed)
    assert by_free == [0.5, 0.0, 1.0]


def test_both_ways_agree_up_to_the_first_mistake(task, model):
    """Fails if the two runs see different sentences or beginnings."""
    forced, free, target, mask = toy_translation.both_ways(model, task)
    assert forced.shape == free.shape == (*target.shape, len(task.target_vocab))
    wrong = (free.argmax(-1) != target) & mask
    before = wrong.int().cumsum(1) - wrong.int() == 0  # up to the first mistake, itself included
    assert torch.allclose(forced[before & mask], free[before & mask], atol=1e-6)
    assert not torch.allclose(forced, free, atol=1e-3)
    assert model.training
    nats = metrics.cross_entropy(forced, target, mask)
    assert toy_translation.perplexity_and_accuracy(forced, target, mask)["perplexity"] == pytest.approx(
        nats.exp().item()
    )


def test_alignment_scores_find_the_truth_and_its_neighbours(task, model, monkeypatch):
    """Fails if rows of the batch are compared with other sentences, or before and after are swapped."""
    truths = {tuple(row): pair.alignment for row, pair in zip(task.test[0], task.test_pairs, strict=True)}

    def pointing(shift):
        def maps(model, source, mask, target_in):
            weights = torch.zeros(*target_in.shape, source.shape[1])
            for row, (ids, real) in enumerate(zip(source, mask, strict=True)):
                for t, s in enumerate(truths[tuple(ids[real].tolist())]):
                    weights[row, t, s + shift] = 1.0
            return weights

        return maps

    for shift, name in ((0, "alignment"), (1, "one_after")):
        monkeypatch.setattr(toy_translation, "alignment", pointing(shift))
        found = toy_translation.alignment_scores(model, task)
        assert found[name] == 1.0
        assert sum(found[key] for key in ("alignment", "one_before", "one_after")) == 1.0
        assert found["weight"] == (1.0 if shift == 0 else 0.0)


def test_the_record_has_what_the_chapter_draws():
    """Fails if a variant or metric is missing, if models differ in their updates, or a seed gives two results."""

    def run():
        return toy_translation.toy_translation(seed=1, pairs=60, test=30, epochs=2, batch_size=30, beams=(2,))

    outcome = run()
    results = outcome["results"]
    assert list(results) == [
        "no attention", "no attention, own words", "no attention, scheduled", "attention", "attention, own words",
    ]  # fmt: skip
    numbers = {"exact", "bleu", "seconds", "parameters", "bleu_beam_2", "exact_beam_2"}
    numbers |= {f"{way}_{metric}" for way in ("forced", "free") for metric in ("perplexity", "accuracy")}
    lists = {"length", "sentences", "exact_by_length", "bleu_by_length"}
    for name, row in results.items():
        assert numbers | lists <= set(row)
        assert row["updates"] == 4
        assert ("alignment" in row) == name.startswith("attention")
        assert [entry["updates"] for entry in outcome["history"][name]] == [2, 4]
    shares = [entry["teacher_forcing"] for entry in outcome["history"]["no attention, scheduled"]]
    assert shares == [1.0, 0.0]
    again = run()["results"]
    for name, row in results.items():
        assert {k: v for k, v in row.items() if k != "seconds"} == {
            k: v for k, v in again[name].items() if k != "seconds"
        }
