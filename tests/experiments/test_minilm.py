"""The recorded runs of chapter 12 with a published model, on a miniature of it and miniature reviews."""

import math

import pytest
import torch

from course_lib import datasets
from course_lib.bert import BERT, BERTConfig, BERTForSequenceClassification
from course_lib.experiments import imdb_bert, minilm
from course_lib.notebook import ledger
from course_lib.utils import huggingface
from tests.helpers import imdb as fake

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*fake.GOOD, *fake.BAD, *fake.FILLER}), "br", "##s"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A folder with a tiny BERT and its tokenizer, where the published model is looked for."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    torch.manual_seed(0)
    config = BERTConfig(len(PIECES), max_len=24, d_model=12, num_layers=2, num_heads=3, dim_feedforward=20)
    bert, folder = BERT(config), tmp_path / "minilm"
    with torch.no_grad():
        for parameter in bert.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    bert.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    huggingface.tokenizer(folder).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def reviews(monkeypatch):
    """60 + 40 reviews in place of IMDB's."""
    splits = fake.splits(train=60, test=40)
    monkeypatch.setattr(datasets, "imdb", lambda split: splits[split])
    return splits


# --- search -------------------------------------------------------------------------


def test_vectors_are_means_over_real_tokens_of_length_one(model):
    """Fails if padding, another text of the batch, or dropout is in a text's vector, or its length is not 1."""
    bert, tokenizer = BERT.from_pretrained(model).double().train(), huggingface.tokenizer(model)
    texts = ("good film", "the plot was awful . the actor was fine", "bad")
    together = minilm.embed(bert, tokenizer, texts)
    assert bert.training
    bert.eval()
    for text, vector in zip(texts, together, strict=True):
        x = bert(torch.tensor([tokenizer.encode(text).ids]))[0]  # (T, D)
        mean = x.mean(0).detach()
        torch.testing.assert_close(vector, mean / math.sqrt((mean * mean).sum()))


def test_tf_idf_is_that_of_its_formula():
    """Fails if a count, an idf or a length is wrong, or the queries' words count among the documents."""
    documents, queries = minilm.tf_idf(("a b b", "a c", "a"), ("b d b c",))
    N, has = 3, {"a": 3, "b": 1, "c": 1, "d": 0}
    idf = {word: math.log((1 + N) / (1 + n)) + 1 for word, n in has.items()}
    long = {"a": idf["a"], "b": 2 * idf["b"]}
    asked = {"b": 2 * idf["b"], "c": idf["c"], "d": idf["d"]}
    wanted = long["b"] * asked["b"] / math.hypot(*long.values()) / math.hypot(*asked.values())
    torch.testing.assert_close((queries @ documents.T)[0, 0].item(), wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(documents.norm(dim=1), torch.ones(3))
    assert (queries @ documents.T)[0, 2] == 0


def test_search_is_recorded_and_read_again_without_the_model(model, monkeypatch, tmp_path):
    """Fails if the ledger lacks what the chapter shows, or a machine without the model gets other numbers."""
    found = minilm.minilm_search(0)["results"]
    assert found["texts"]["documents"] == list(minilm.DOCUMENTS)
    for way in ("MiniLM", "tf-idf"):
        cosines = found[way]["cosines"]
        assert cosines.shape == (4, 12)
        answers = torch.tensor(list(minilm.QUERIES.values()))
        assert found[way]["right"] == (cosines.argmax(1) == answers).sum()
    torch.testing.assert_close(minilm.search(), found["MiniLM"]["cosines"])
    ledger.save({"experiment": "minilm-search", "runs": [{"seed": 0, "results": found}]}, tmp_path / "ledger")
    monkeypatch.setattr(ledger, "course_folder", lambda: tmp_path / "ledger")
    monkeypatch.setattr(minilm, "find_minilm", lambda: huggingface.cached("owner/none", "none"))
    torch.testing.assert_close(minilm.search(), found["MiniLM"]["cosines"])


# --- reviews ------------------------------------------------------------------------


def test_reviews_are_those_of_the_course_s_own_network(reviews):
    """Fails if the comparison is on other reviews than `imdb_bert_curves` learns from and is tested on."""
    (texts, labels), (test, wanted) = minilm.draw_reviews(2, 9, 7)
    order = torch.randperm(60, generator=imdb_bert._generator(2, 3)).tolist()[:9]
    assert texts == [reviews["train"][0][i] for i in order]
    assert labels == [reviews["train"][1][i] for i in order]
    drawn = torch.randperm(40, generator=imdb_bert._generator(0, 2)).tolist()[:7]
    assert test == [reviews["test"][0][i] for i in drawn]
    assert wanted == [reviews["test"][1][i] for i in drawn]


def test_a_long_review_keeps_its_end(model):
    """Fails if the beginning is kept, a special token is missing, or HTML's line breaks are read."""
    tokenizer = huggingface.tokenizer(model)
    rows = minilm.review_rows(["good<br />film", "the the plot was awful"], tokenizer, 5)
    tokens = [[PIECES[i] for i in row] for row in rows]
    assert tokens == [["[CLS]", "good", "film", "[SEP]"], ["[CLS]", "plot", "was", "awful", "[SEP]"]]


def test_the_recorded_judge_speaks_as_the_chapter_s_does():
    """Fails if a pass, the accuracy, or a verdict with its probability is missing or another run's."""
    record = ledger.load("minilm-judge")
    for run in record["runs"]:
        lines, row = minilm.recorded_judge(run["seed"]), run["results"]["100 labels"]
        losses = [entry["train_loss"] for entry in run["history"]["100 labels"]]
        assert [line.split(",")[0] for line in lines[:4]] == ["step 14", "step 28", "step 42", "step 56"]
        assert lines[3] == f"step 56, loss {sum(losses[-2:]) / 2:.2f}"
        assert lines[4] == f"new reviews {row['accuracy']:.2f}"
        for line, text, p in zip(lines[5:], row["texts"], row["positive"], strict=True):
            word, share = line.removesuffix(text).split()
            assert word == ("positive" if p > 0.5 else "negative")
            assert abs(float(share) - max(p, 1 - p)) < 0.006


# --- learning -----------------------------------------------------------------------


def test_margins_come_back_in_order(model):
    """Fails if the reviews, sorted by length for speed, keep that order, or dropout is on."""
    classifier = BERTForSequenceClassification(BERT.from_pretrained(model), pool="mean").train()
    rows = [[2, 5, 6, 7, 3], [2, 3], [2, 8, 3]]
    found = minilm.margins(classifier, rows, bf16=False)
    for row, margin in zip(rows, found, strict=True):
        negative, positive = classifier(torch.tensor([row]))[0].tolist()
        assert margin.item() == pytest.approx(positive - negative, abs=1e-5)


def test_imdb_minilm_records_what_the_chapter_draws(model, reviews):
    """Fails if a number of labels is missing, one run starts where another ended, or nothing is learned."""
    settings = {"epochs": (12, 8), "tested": 40, "length": 20, "batch_size": 8, "learning_rate": 1e-2}
    found = minilm.imdb_minilm(1, sizes=(16, 48), **settings)
    assert list(found["results"]) == ["16 labels", "48 labels"]
    for (name, row), epochs in zip(found["results"].items(), (12, 8), strict=True):
        assert row["labels"] == int(name.split()[0])
        assert len(found["history"][name]) == row["epochs"] == epochs
        assert 0 <= row["accuracy"] <= 1
    assert found["results"]["48 labels"]["accuracy"] > 0.7
    alone = minilm.imdb_minilm(1, sizes=(16,), **settings | {"epochs": (12,)})
    assert alone["results"]["16 labels"]["accuracy"] == found["results"]["16 labels"]["accuracy"]


def test_minilm_judge_records_what_the_chapter_shows(model, reviews):
    """Fails if a short review has no probability, another's stands in its place, or it is judged by another network."""
    settings = {"tested": 40, "length": 20, "batch_size": 8, "learning_rate": 1e-2}
    row = minilm.minilm_judge(1, size=48, epochs=8, **settings)["results"]["48 labels"]
    curve = minilm.imdb_minilm(1, sizes=(48,), epochs=(8,), **settings)["results"]["48 labels"]
    assert row["accuracy"] == curve["accuracy"]
    assert dict(zip(row["texts"], row["wanted"], strict=True)) == minilm.JUDGED
    assert row["positive"].shape == (len(minilm.JUDGED),)
    assert ((0 < row["positive"]) & (row["positive"] < 1)).all()


def test_all_labels_are_tested_on_the_reviews_of_the_curve_too(model, reviews):
    """Fails if the 2,000 reviews of `imdb_minilm` are others, or not every label is learned from."""
    settings = {"length": 20, "batch_size": 8, "learning_rate": 1e-2}
    row = minilm.imdb_minilm_all(1, size=48, epochs=8, tested=40, **settings)["results"]["48 labels"]
    curve = minilm.imdb_minilm(1, sizes=(48,), epochs=(8,), tested=40, **settings)["results"]["48 labels"]
    assert row["labels"] == 48
    assert row["accuracy"] == row["accuracy_2000"] == curve["accuracy"]
    texts = [minilm._draw("test", 2, n)[0] for n in (7, 40)]
    assert texts[1][:7] == texts[0]


def test_fine_tuning_moves_every_weight_that_is_read(model):
    """Fails if the network is frozen or the schedule ends before the last step; the pooler is not read."""
    classifier = BERTForSequenceClassification(BERT.from_pretrained(model), pool="mean")
    before = {name: x.clone() for name, x in classifier.named_parameters()}
    minilm.fine_tune(classifier, [[2, 5, 6, 3], [2, 7, 3], [2, 8, 9, 3]], [0, 1, 1], 0, 2, 2, 1e-2, bf16=False)
    still = [name for name, x in classifier.named_parameters() if torch.equal(x, before[name])]
    assert set(still) <= {"bert.pooler.weight", "bert.pooler.bias"}


def test_bag_is_validated_on_reviews_that_it_was_not_fitted_to():
    """Fails if a fold is among the reviews that its bag learned: here each one has a word of its own and no other."""
    tokens, labels = [[f"word{i}"] for i in range(12)], [0, 1] * 6
    assert minilm._cross_validated(tokens, labels, 1e-3, 4, 20) <= 0.5


def test_minilm_bag_records_what_the_chapter_draws(reviews):
    """Fails if a variant is missing or the bag learns nothing from words that tell."""
    found = minilm.minilm_bag(0, sizes=(20, 60), tested=40, strengths=(1e-3, 1e-2), folds=4, steps=20)["results"]
    assert set(found) == {f"{kind}, {n} labels" for kind in ("words", "words and pairs") for n in (20, 60)}
    assert found["words, 60 labels"]["accuracy"] > 0.8
    assert found["words, 60 labels"]["l2"] in (1e-3, 1e-2)


def test_layer_means_leave_padding_out(model):
    """Fails if a layer is missing or out of order, or a review's mean depends on its batch."""
    bert = BERT.from_pretrained(model)
    rows = [[2, 5, 6, 7, 8, 3], [2, 3], [2, 9, 3]]
    layers = minilm.mean_by_layer(bert, rows)
    assert [tuple(x.shape) for x in layers] == [(3, 12)] * 3
    for i, row in enumerate(rows):
        for x, found in zip(bert.hidden(torch.tensor([row])), layers, strict=True):
            torch.testing.assert_close(found[i], x[0].mean(0), rtol=1e-4, atol=1e-5)


def test_minilm_probe_records_what_the_chapter_draws(model, reviews):
    """Fails if a layer is missing."""
    found = minilm.minilm_probe(0, size=40, tested=30, length=20)["results"]["by layer"]
    assert len(found["accuracy"]) == len(found["train_accuracy"]) == 3
    assert max(found["train_accuracy"]) > 0.7


def test_nothing_is_downloaded(monkeypatch, tmp_path):
    """Fails if a machine without the model asks the hub for it."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(datasets.DataError, match="is not on this machine: call BERT"):
        minilm.find_minilm()
