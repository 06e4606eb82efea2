"""Chapter 12's toy runs: the parts are apart, the places are right, the probe is a probe, the record is whole."""

import copy

import pytest
import torch

from course_lib.bert import IGNORE
from course_lib.datasets import synthetic
from course_lib.experiments import toy_bert as toys
from course_lib.experiments.toy_bert import CLS, FIRST, MASK, SEP


@pytest.fixture(scope="module")
def task():
    return toys.review_task(seed=3, labelled=60, test=40)


@pytest.fixture(scope="module")
def model(task):
    torch.manual_seed(0)
    return toys.small_bert(task, width=8, heads=2)


def test_every_review_of_one_judgement_occurs_once():
    """Fails if reviews are lost or doubled, labels are not balanced, or the places are not the adjectives'."""
    reviews = toys.review_text()
    assert len({" ".join(review.words) for review in reviews}) == len(reviews) == 8 * 8 * 36 * 2
    assert sum(review.label for review in reviews) == len(reviews) // 2
    for review in reviews:
        held, denied = review.words[review.held], review.words[review.denied]
        assert (held in synthetic.GOOD, denied in synthetic.BAD) == (review.label == 1, review.label == 1)
        assert synthetic.THINGS[review.thing] in review.words
    form = "critics called the {} {} , but i found it {} ."
    assert form.format("plot", "dull", "superb").split() in [review.words for review in reviews if review.label == 1]


def test_the_three_parts_share_no_review(task):
    """Fails if a test review is trained on, or the reviews beside the test rows are others."""
    parts = [{tuple(row) for row in rows} for rows in (task.unlabelled, *([r for r, _ in p] for p in task[2:4]))]
    assert sum(map(len, parts)) == len(parts[0] | parts[1] | parts[2]) == 4608
    for (row, label), review in zip(task.test, task.reviews, strict=True):
        assert [task.vocab.itos[i] for i in row] == ["[CLS]", *review.words, "[SEP]"]
        assert label == review.label
    assert [task.vocab.itos[i] for i in (CLS, SEP, MASK)] == ["[CLS]", "[SEP]", "[MASK]"]
    assert min(min(row[1:-1]) for row in task.unlabelled) >= FIRST


def test_masked_batches_hide_words_alone(task):
    """Fails if special tokens or padding are chosen, or two passes have the same blanks."""
    generator = torch.Generator().manual_seed(0)
    rows, passes = task.unlabelled[:64], []
    for _ in range(2):
        inputs, mask, targets = next(iter(toys.masked_batches(rows, len(task.vocab), 64, generator)))
        chosen = targets != IGNORE
        assert chosen.any()
        assert (targets[chosen] >= FIRST).all()
        assert mask[chosen].all()
        assert ((inputs == MASK) <= chosen).all()
        passes.append(chosen.sum(0).tolist())
    assert passes[0] != passes[1]


def test_pretraining_learns_and_is_the_same_again(task):
    """Fails if the loss does not fall, steps are lost, or a seed gives two results."""

    def train():
        torch.manual_seed(0)
        model = toys.small_bert(task, width=8, heads=2)
        return toys.pretrain(model, task, 14, batch_size=16, learning_rate=1e-2, every=5), model

    history, model = train()
    assert [entry["step"] for entry in history] == [5, 10, 14]
    assert history[-1]["loss"] < history[0]["loss"]
    assert train()[0] == history
    assert toys.masked_scores(model, task) == toys.masked_scores(model, task)
    assert toys.masked_scores(model, task) != toys.masked_scores(model, task, seed=1)


def test_no_steps_of_pretraining_change_nothing(task):
    """Fails if exercise 12.5's start from scratch, 0 steps of reading, is refused or moves a weight."""
    model = toys.small_bert(task, width=16, heads=2, layers=1)
    start = [parameter.clone() for parameter in model.parameters()]
    assert toys.pretrain(model, task, steps=0) == []
    assert all(torch.equal(a, b) for a, b in zip(start, model.parameters(), strict=True))


def test_finetuning_leaves_its_start_as_it_was(task, model):
    """Fails if the pre-trained network is changed, the classifier does not learn, or labels are not its own."""
    before = copy.deepcopy(model.bert.state_dict())
    tuned = toys.finetune(model.bert, task.labelled[:8], 60, batch_size=8, learning_rate=1e-2)
    assert all(torch.equal(before[name], x) for name, x in model.bert.state_dict().items())
    assert not torch.equal(tuned.bert.embedding.token.weight, model.bert.embedding.token.weight)
    assert toys.accuracy(tuned, task.labelled[:8]) > 0.8
    flipped = [(row, 1 - label) for row, label in task.labelled[:8]]
    assert toys.accuracy(tuned, flipped) == pytest.approx(1 - toys.accuracy(tuned, task.labelled[:8]))


def test_features_are_means_over_real_tokens(task, model):
    """Fails if padding counts, or the mode of the network is not put back."""
    model.train()
    rows = [task.test[0][0], task.test[1][0] + task.test[2][0]]
    both = toys.features(model.bert, rows)
    assert model.training
    for row, found in zip(rows, both, strict=True):
        torch.testing.assert_close(found, model.bert(torch.tensor([row]))[0].mean(0))


def test_probe_reads_what_is_linear_and_nothing_else():
    """Fails if the probe cannot fit a linear rule, fits an exclusive or, or reports the fitted data's score."""
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    linear, product = (x[:, 0] > 0.3).long(), (x[:, 0] * x[:, 1] > 0).long()
    assert toys.probe(x[:300], linear[:300], x[300:], linear[300:])["accuracy"] > 0.95
    found = toys.probe(x[:300], product[:300], x[300:], product[300:])
    assert found["accuracy"] < 0.65
    wide = torch.randn(40, 60, generator=torch.Generator().manual_seed(1))
    noise = torch.randint(2, (40,), generator=torch.Generator().manual_seed(2))
    by_heart = toys.probe(wide[:20], noise[:20], wide[20:], noise[20:])
    assert by_heart["train_accuracy"] == 1
    assert by_heart["accuracy"] < 0.9


def test_vectors_are_those_of_the_adjectives(task, model):
    """Fails if a place is off by one, the order of held and denied is turned, or a layer is missing."""
    layers, answers = toys.adjectives(model.bert, task)
    assert len(layers) == 3
    for r in (0, 7):
        review, ids = task.reviews[r], torch.tensor([task.test[r][0]])
        for k, place in enumerate((review.held, review.denied)):
            assert review.words[place] in synthetic.GOOD + synthetic.BAD
            torch.testing.assert_close(layers[0][2 * r + k], model.bert.embedding(ids)[0, 1 + place])
            torch.testing.assert_close(layers[2][2 * r + k], model.bert(ids)[0, 1 + place])
            assert answers["role"][2 * r + k] == 1 - k
            assert answers["thing"][2 * r + k] == review.thing


def test_the_record_has_what_the_chapter_draws():
    """Fails if a row or a metric that notebook 12 reads is missing, or a seed gives two results."""

    def run():
        return toys.bert_toy(1, steps=2, labels=(4, 8), finetune_steps=2, width=8, labelled=8, test=20)

    outcome = run()
    for way in ("pre-trained", "from scratch", "frozen"):
        for n in (4, 8):
            assert 0 <= outcome["results"][f"{way}, {n} labels"]["accuracy"] <= 1
    for kind in ("pre-trained", "untrained", "shuffled"):
        row = outcome["results"][f"probe, {kind}"]
        assert [len(row[question]) for question in toys.QUESTIONS] == [3, 3]
    assert set(outcome["results"]["pre-training"]) == {"loss", "accuracy"}
    assert [entry["step"] for entry in outcome["history"]["pre-training"]] == [2]
    assert run() == outcome


def test_the_record_of_many_steps_has_what_the_chapter_draws():
    """Fails if a row is missing, the rate is chosen on the test reviews, or a seed gives two results."""

    def run():
        settings = {"labels": (4, 8), "steps": (2, 4), "rates": (1e-3, 1e-2), "width": 8, "labelled": 20, "test": 20}
        return toys.bert_toy_steps(1, **settings)

    outcome = run()
    for steps in (2, 4):
        for n in (4, 8):
            row = outcome["results"][f"from scratch, {steps} steps, {n} labels"]
            best = row["by rate"]["valid_accuracy"].index(row["valid_accuracy"])
            assert row["valid_accuracy"] == max(row["by rate"]["valid_accuracy"])
            assert row["accuracy"] == row["by rate"]["accuracy"][best]
            assert row["rate"] == (1e-3, 1e-2)[best]
    assert run() == outcome
