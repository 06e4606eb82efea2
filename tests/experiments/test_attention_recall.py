"""The memory task of chapter 07: what is asked, who sees what, and the record's form."""

import torch

from course_lib.experiments import attention_recall as recall


def test_the_answer_is_the_digit_of_the_letter_asked_for():
    """Fails if the question is not one of the letters, letters repeat, or the answer is another pair's digit."""
    x, digit = recall.draw(50, torch.Generator().manual_seed(0))
    letters, digits = x[:, :-1, :10].argmax(2), x[:, :-1, 10:].argmax(2)
    asked = x[:, -1, :10].argmax(1)
    assert all(len(set(row)) == 8 for row in letters.tolist())
    found = [digits[b][letters[b] == asked[b]].tolist() for b in range(50)]
    assert found == [[d] for d in digit.tolist()]
    assert x[:, -1, 10:].sum() == 0


def test_attention_learns_it_and_both_have_the_sizes_that_the_chapter_names():
    """Fails if the parameters are other than the chapter says, or attention does not learn in 100 updates."""
    torch.manual_seed(0)
    model = recall.AttentionReader(32)
    assert sum(p.numel() for p in model.parameters()) == 2346
    assert sum(p.numel() for p in recall.RecurrentReader("GRU", 64).parameters()) == 17162
    assert recall.train_reader(model, 0.01, 0, (100,))[0] > 0.9


def test_the_question_looks_at_the_pairs_alone():
    """Fails if its own row is among those it looks at: with equal scores the mean then runs over nine."""
    torch.manual_seed(0)
    model = recall.AttentionReader(6)
    torch.nn.init.zeros_(model.W_q.weight)
    torch.nn.init.zeros_(model.W_q.bias)
    x, _ = recall.draw(3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x), model.output(model.W_v(x[:, :-1]).mean(1)))


def test_the_record_has_what_the_chapter_draws():
    """Fails if a variant or a metric is missing, or a seed gives two results."""

    def run():
        return recall.attention_recall(seed=1, width=4, units=4, wide=5, short=(1, 2), medium=(1, 2), long=(1, 3))

    outcome = run()
    assert {"attention, rate 0.01", "GRU, rate 0.005", "LSTM, rate 0.005", "GRU, wide", "GRU, long"} <= set(
        outcome["results"]
    )
    for row in outcome["results"].values():
        assert set(row) == {"parameters", "updates", "by_updates", "accuracy"}
        assert len(row["updates"]) == len(row["by_updates"]) == 2
        assert row["accuracy"] == row["by_updates"][-1]
    assert run() == outcome
