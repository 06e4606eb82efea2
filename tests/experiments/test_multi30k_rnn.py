"""The translation experiments on a small made-up Multi30k: the record, fairness, and how BLEU is computed."""

import inspect
import math

import pytest
import torch

from course_lib import datasets, metrics, train
from course_lib.datasets import synthetic
from course_lib.experiments import multi30k
from course_lib.experiments import multi30k_rnn as ch06
from course_lib.text import denumericalize, tokenize

EXPERIMENTS = {"LSTM": ch06.multi30k_lstm, "GRU": ch06.multi30k_gru, "attention": ch06.multi30k_attention}
SMALL = {"merges": (60, 40), "embedding": 12, "encoder": 8, "decoder": 10, "warm_up": 3, "batch_size": 16, "epochs": 2}


def sentence(words):
    """As the captions are published: a capital letter and a full stop."""
    return f"{' '.join(words).capitalize()}."


@pytest.fixture
def captions(monkeypatch, tmp_path):
    """80 + 10 + 15 pairs of the toy language in place of the captions; checkpoints in a folder of their own."""
    monkeypatch.setenv("COURSE_CHECKPOINTS", str(tmp_path))
    pairs = [(sentence(target), sentence(source)) for source, target, _ in synthetic.translation_pairs(105, seed=5)]
    splits = {"train": pairs[:80], "valid": pairs[80:90], "test": pairs[90:]}
    monkeypatch.setattr(datasets, "multi30k", lambda split: splits[split])
    multi30k._prepared.cache_clear()
    yield splits
    multi30k._prepared.cache_clear()


def run(name, **settings):
    """The row and the history of one small run."""
    torch.manual_seed(0)
    outcome = EXPERIMENTS[name](seed=0, **SMALL | settings)
    return outcome["results"][name], outcome["history"][name]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_model_is_recorded_with_all_that_the_chapter_shows(captions, name):
    """Fails if a metric is missing, or the row is not that of the epoch with the lowest validation loss."""
    row, history = run(name)
    best = min(history, key=lambda entry: entry["valid_loss"])
    assert [entry["epoch"] for entry in history] == [1, 2]
    assert history[-1]["valid_loss"] < history[0]["valid_loss"]
    assert row["best_epoch"] == best["epoch"]
    assert row["valid_perplexity"] == math.exp(best["valid_loss"])
    assert row["signature"].startswith("nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:")
    for metric in ("valid_bleu", "bleu", "bleu_tokens", "bleu_beam"):
        assert 0 <= row[metric] <= 100
    assert len(row["length_mean"]) == len(row["bleu_by_length"]) == len(row["length_count"])
    assert sum(row["length_count"]) == 15
    assert 1 < row["perplexity"] < row["perplexity_word"]  # words are at least as long as pieces
    assert 0 < row["piece_accuracy"] < 1
    assert len(row["examples"]) == 5
    assert row["parameters"] > 0
    assert row["train_cpu_seconds"] > 0


def test_the_seed_decides_the_run(captions):
    """Fails if a run cannot be repeated."""
    (row, history), (again, same) = run("attention"), run("attention")
    assert history == same
    assert {**row, "train_cpu_seconds": 0} == {**again, "train_cpu_seconds": 0}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_stopped_run_goes_on(captions, tmp_path, monkeypatch, name):
    """Fails if a run that was stopped after its first epoch starts again, ends elsewhere, or leaves its file."""
    row, whole = run(name)
    epochs, evaluate = [], train.evaluate

    def stop_in_the_second(*arguments, **options):
        epochs.append(len(epochs) + 1)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments, **options)

    monkeypatch.setattr(train, "evaluate", stop_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        run(name)
    monkeypatch.setattr(train, "evaluate", evaluate)
    assert len(list(tmp_path.glob("*.pt"))) == 1
    again, history = run(name)
    losses = [[entry["train_loss"] for entry in log] for log in (whole, history)]
    assert losses[0] == losses[1]
    assert again["bleu"] == row["bleu"]
    assert not list(tmp_path.glob("*.pt"))


def test_the_test_captions_decide_nothing(captions):
    """Fails if merges, vocabulary or epoch depend on the test set: with other captions the history stays."""
    row, before = run("GRU")
    captions["test"] = [("Qvx wzy.", "Jkq zzz.")] * 15
    multi30k._prepared.cache_clear()
    other, after = run("GRU")
    assert before == after
    assert other["vocabulary"] == row["vocabulary"]
    assert other["perplexity"] != row["perplexity"]


def test_the_three_experiments_share_their_protocol():
    """Fails if the comparison is unfair: text and training are the same, and attention has no larger part."""
    sizes = ("embedding", "encoder", "decoder")
    chosen = {
        name: {p.name: p.default for p in list(inspect.signature(function).parameters.values())[1:]}
        for name, function in EXPERIMENTS.items()
    }
    own = {*sizes, "pool", "attention", "dropout"}  # sizes, and how the sentence is handed over
    protocols = [{key: value for key, value in config.items() if key not in own} for config in chosen.values()]
    assert protocols[0] == protocols[1] == protocols[2]
    assert protocols[0]["epochs"] == 10
    assert chosen["LSTM"] == chosen["GRU"]
    assert all(chosen["attention"][size] <= chosen["GRU"][size] for size in sizes)


@pytest.mark.parametrize("merges", [0, 40])
def test_pieces_become_words_again(captions, merges):
    """Fails if a word is torn or glued to its neighbour; also without merges."""
    _, ids, (_, vocab) = multi30k._prepared((30, merges))
    texts, _, _ = multi30k._prepared((30, merges))
    for row, words in zip(ids["train"][1], texts["train"]["target"], strict=True):
        if all(denumericalize([i], vocab) != ["<unk>"] for i in row):
            assert multi30k._words(row, vocab) == words
    assert len(ids["train"][1][0]) >= len(texts["train"]["target"][0])


def test_sacrebleu_sees_whole_sentences():
    """Fails if the tokenizer's spaces around hyphens and full stops cost points, or the case does."""
    published = ["A man in a T-shirt, smiling, plays.", "Two dogs run (fast)!"]
    words = [tokenize(text) for text in published]
    found = multi30k._sacrebleu(words, {"published": published})
    assert found["bleu"] == pytest.approx(100.0)
    assert multi30k._sacrebleu([words[1], words[0]], {"published": published})["bleu"] < 20


def test_words_become_a_sentence():
    """Fails if a mark of the published form is lost."""
    words = tokenize("A man's T-shirt, red; (or not) runs!")
    assert multi30k._sentence(words) == "a man's t-shirt, red ; ( or not ) runs!"


def test_bleu_by_length_scores_each_group_by_itself():
    """Fails if groups overlap, bounds are off by one, or hypotheses meet the wrong references."""
    lengths = [8, 9, 11, 12, 30, 5]
    sources = [["w"] * n for n in lengths]
    references = [[[str(i), *"abcd"]] for i in range(6)]
    hypotheses = [[str(i), *"abcd"] for i in range(6)]
    hypotheses[4] = ["x", "a", "b", "c", "d"]
    found = multi30k._bleu_by_length(hypotheses, references, sources)
    assert found["length_count"] == [2, 2, 1, 1]  # 8 and 5; 9 and 11; 12; 30: no sentence of 15 to 18
    assert found["length_mean"] == [6.5, 10.0, 12.0, 30.0]
    wrong = metrics.bleu([hypotheses[4]], [references[4]])
    assert found["bleu_by_length"] == pytest.approx([100.0, 100.0, 100.0, wrong])
    assert wrong < 100
