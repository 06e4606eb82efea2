"""Chapter 13's experiments in small: the re-typed baseline, and that each recorded number is of what it says."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from course_lib import cost, data
from course_lib.experiments import ch13, known
from course_lib.experiments.nanogpt import NanoGPT, nanogpt_optimizer, nanogpt_rate
from course_lib.gpt import GPT, GPTConfig
from course_lib.tasks import number_of_parameters

TEXT = "".join(
    f"\n\nSPEAKER {'ABC'[i % 3]}:\nthe cat {i % 7} saw a dog and no {i % 11} hats, so it goes" for i in range(60)
)


@pytest.fixture
def play(monkeypatch):
    """Short speeches in place of Shakespeare's."""
    monkeypatch.setattr(data, "tiny_shakespeare", lambda: TEXT)


def nano(dropout=0.0, bias=False):
    """A small NanoGPT from seed 0: V = 11, 7 positions, 2 layers, 3 heads, D = 12."""
    torch.manual_seed(0)
    return NanoGPT(11, 7, 2, 3, 12, dropout, bias)


# --- nanoGPT ----------------------------------------------------------------------


def test_nanogpt_has_the_published_number_of_parameters():
    """Fails if a layer, a bias or a table is missing or too many: 804,096 is the sum worked out by hand."""
    D, V, block = 128, 65, 64
    by_hand = (V + block) * D + 4 * (12 * D * D + 2 * D) + D
    assert number_of_parameters(NanoGPT(V, block, 4, 4, D, 0.0)) == by_hand == 804_096
    biases = 4 * (2 * D + 3 * D + D + 4 * D + D) + D
    assert number_of_parameters(NanoGPT(V, block, 4, 4, D, 0.0, bias=True)) == by_hand + biases


def test_nanogpt_equals_the_courses_gpt():
    """Fails if an operation of the baseline differs: with equal weights its logits are those of the course's GPT."""
    base = nano(bias=True).double()
    model = GPT(GPTConfig(11, 7, 12, 2, 3, dropout=0.0, activation="gelu")).double()
    names = {"ln_1": "norm1", "ln_2": "norm2", "attn_proj": "self_attn.out_proj", "c_fc": "linear1"}
    weights = {
        "embedding.embedding.weight": base.wte.weight,
        "embedding.position.weight": base.wpe.weight,
        "encoder.norm.weight": base.ln_f.weight,
        "encoder.norm.bias": base.ln_f.bias,
    }
    for i, block in enumerate(base.blocks):
        torch.nn.init.normal_(block.c_attn.bias)  # zero at the start, and then no test of it
        for ours, theirs in {**names, "mlp_proj": "linear2"}.items():
            for kind in ("weight", "bias"):
                weights[f"encoder.layers.{i}.{theirs}.{kind}"] = getattr(getattr(block, ours), kind)
        for kind in ("weight", "bias"):
            weights[f"encoder.layers.{i}.self_attn.in_proj_{kind}"] = getattr(block.c_attn, kind)
    model.load_state_dict(weights)
    ids, targets = torch.randint(11, (2, 3, 7))
    logits, loss = base(ids, targets)
    torch.testing.assert_close(logits, model(ids))
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    torch.testing.assert_close(base(ids)[0], logits[:, -1:])
    assert base(ids)[1] is None


def test_nanogpt_sees_nothing_later():
    """Fails if a position's logits depend on a later token."""
    model, ids = nano(), torch.randint(11, (2, 7))
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % 11
    before, after = model(ids, ids)[0], model(changed, changed)[0]
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_nanogpt_starts_as_published():
    """Fails if the start knows anything (a loss far from log V), or the spread of a kind of weights is another one."""
    torch.manual_seed(0)
    model = NanoGPT(65, 64, 4, 4, 128, 0.0, bias=True)
    ids, targets = torch.randint(65, (2, 4, 64))
    assert abs(model(ids, targets)[1].item() - math.log(65)) < 0.1
    block = model.blocks[2]
    for weight in (model.wte.weight, model.wpe.weight, block.c_attn.weight, block.c_fc.weight):
        assert abs(weight.std().item() / 0.02 - 1) < 0.05
    for projection in (block.attn_proj, block.mlp_proj):
        assert abs(projection.weight.std().item() / (0.02 / 8**0.5) - 1) < 0.05
        assert not projection.bias.any()
    assert model.wte.weight is model.lm_head.weight


def test_nanogpt_uses_dropout_in_training_only():
    """Fails if a dropout is missing in training, or stays on in evaluation."""
    model, ids = nano(dropout=0.5), torch.randint(11, (2, 7))
    assert not torch.equal(model(ids)[0], model(ids)[0])
    model.eval()
    assert torch.equal(model(ids)[0], model(ids)[0])


def test_nanogpt_generates_with_a_cropped_context():
    """Fails if a text longer than the table breaks it, or top-k 1 is not the likeliest token after the last seven."""
    model, ids = nano().eval(), torch.tensor([[3, 1], [4, 10]])
    found = model.generate(ids, 9, temperature=0.7, top_k=1)
    assert found.shape == (2, 11)
    assert torch.equal(found[:, :2], ids)
    for t in range(2, 11):
        assert torch.equal(found[:, t], model(found[:, max(0, t - 7) : t])[0][:, -1].argmax(-1))
    draws = [model.generate(ids, 9, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_nanogpt_refuses_more_than_its_table_holds():
    """Fails if a text longer than the context gives an error of an index, or none."""
    with pytest.raises(ValueError, match="8 tokens are more than the 7"):
        nano()(torch.zeros(1, 8, dtype=torch.int64))


def test_nanogpt_optimizer_has_two_groups():
    """Fails if a bias or a norm decays, a matrix does not, a parameter is left out, or the settings are others."""
    model = nano(bias=True)
    optimizer = nanogpt_optimizer(model, 3e-4)
    decay, free = optimizer.param_groups
    assert decay["weight_decay"] == 0.1
    assert free["weight_decay"] == 0.0
    assert {p.ndim for p in decay["params"]} == {2}
    assert {p.ndim for p in free["params"]} == {1}
    assert sum(p.numel() for group in (decay, free) for p in group["params"]) == number_of_parameters(model)
    assert decay["betas"] == (0.9, 0.99)
    assert decay["lr"] == 3e-4
    assert not decay["fused"]


def test_nanogpt_rate_against_hand_worked_values():
    """Fails if warm-up, the middle of the cosine, or the end is another value."""
    assert nanogpt_rate(0) == pytest.approx(1e-3 / 101)
    assert nanogpt_rate(99) == pytest.approx(1e-3 * 100 / 101)
    assert nanogpt_rate(100) == pytest.approx(1e-3)
    assert nanogpt_rate(1050) == pytest.approx(5.5e-4)  # half way between 1e-3 and 1e-4
    assert nanogpt_rate(2000) == nanogpt_rate(5000) == pytest.approx(1e-4)


# --- Shakespeare ------------------------------------------------------------------

TINY = {"layers": 1, "heads": 2, "width": 8, "block": 6, "batch_size": 3}


def test_all_are_announced():
    """Fails if an experiment cannot be run by name."""
    names = {
        "shakespeare-gpt",
        "shakespeare-gpt-positions",
        "shakespeare-gpt-time",
        "gpt-sampling",
        "gpt-cache",
        "gpt-prefix",
        "gpt-scaling",
    }
    assert names <= known().keys()


def test_the_texts_are_cut_as_usual(play):
    """Fails if validation text is trained on, also when a part of the training text is set aside for choices."""
    train, valid, chars = ch13.shakespeare()
    assert "".join(chars[i] for i in train) + "".join(chars[i] for i in valid) == TEXT
    assert len(train) == int(0.9 * len(TEXT))
    first, second, _ = ch13.shakespeare(choose=True)
    assert torch.equal(torch.cat([first, second]), train)
    assert len(first) == len(train) * 8 // 9


def test_shakespeare_gpt_records_both_models(play):
    """Fails if a row or a number is missing, the models' tokens differ, or training makes nothing better."""
    found = ch13.shakespeare_gpt(0, **TINY, steps=30, chunk=20, warmup=5, estimates=2)
    json.dumps(found, allow_nan=False)
    results, history = found["results"], found["history"]
    assert list(results) == list(history) == ["nanoGPT", "ours"]
    for row, entries in history.items():
        assert [entry["step"] for entry in entries] == [20, 30]
        assert entries[-1]["train_loss"] < entries[0]["train_loss"]
        assert results[row]["tokens"] == 30 * 3 * 6
        assert results[row]["valid_loss"] < math.log(len(set(TEXT)))
        assert results[row]["seconds_per_step"] * 30 == pytest.approx(results[row]["seconds"])
    assert results["nanoGPT"]["time_share"] == 1


def test_turns_do_not_change_what_is_learnt(play):
    """Fails if a learner's losses depend on the other one or on the length of a turn."""
    together = ch13.shakespeare_gpt(0, ("ours", "nanoGPT"), **TINY, steps=4, chunk=2, warmup=2, estimates=1)
    alone = ch13.shakespeare_gpt(0, ("ours",), **TINY, steps=4, chunk=4, warmup=2, estimates=1)
    assert together["results"]["ours"]["valid_loss"] == alone["results"]["ours"]["valid_loss"]


def test_learned_positions_are_a_row_of_their_own(play):
    """Fails if the row with learned positions has none: a table of block x D numbers more."""
    rows = ("ours", "ours, learned positions")
    results = ch13.shakespeare_gpt(0, rows, **TINY, steps=2, chunk=2, warmup=1, estimates=1)["results"]
    assert results[rows[1]]["parameters"] - results[rows[0]]["parameters"] == 6 * 8


def test_whole_loss_counts_every_window_once():
    """Fails if the mean over batches of unequal size is not the mean over all tokens."""
    torch.manual_seed(0)
    ids = torch.randint(9, (38,))
    model = ch13.make_gpt(9, 5, 1, 2, 8)
    learner = ch13.our_learner(model, 1, 0.1, 0)
    inputs, targets = ids[:35].view(7, 5), ids[1:36].view(7, 5)
    wanted = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
    assert learner.whole(ids, 5, batch_size=3) == pytest.approx(wanted, rel=1e-6)


def test_estimates_are_of_the_same_windows():
    """Fails if two estimates of one model differ, or training moves the windows of the estimate."""
    ids = torch.arange(40) % 9
    learner = ch13.our_learner(ch13.make_gpt(9, 5, 1, 2, 8), 1, 0.0, 0)
    before = learner.estimate(ids, 5, 2, 3)
    learner.advance(ids, 5, 2, 1)  # with a learning rate of 0
    assert learner.estimate(ids, 5, 2, 3) == before


# --- drawn texts ------------------------------------------------------------------


def test_statistics_against_hand_worked_values():
    """Fails if n-grams are counted across texts, or repetitions across texts count, or cut-off words do."""
    texts = ["abcabc", "abx"]  # abc bca cab abc, abx
    assert ch13.distinct(texts, 3) == 4 / 5
    assert ch13.repetition(texts, 3) == 1 / 5
    assert ch13.repetition(["abc", "abc"], 3) == 0
    assert ch13.repetition(["a" * 13]) == 5 / 6  # six 8-grams, all the same
    assert ch13.known_words(["The cat's a hta, the", "ca"], {"the", "cat's", "a"}) == 3 / 4


def test_likelihood_is_of_the_text_alone():
    """Fails if the prompt's tokens count, or the text is not scored after its prompt."""
    torch.manual_seed(0)
    model = ch13.make_gpt(9, 12, 1, 2, 8).eval()
    prompts, texts = [[1, 2, 3], [4]], [[5, 6], [7, 8, 0]]
    total = 0.0
    for prompt, text in zip(prompts, texts, strict=True):
        for i, token in enumerate(text):
            logits = model(torch.tensor([prompt + text[:i]]))[0, -1]
            total -= logits.log_softmax(-1)[token].item()
    assert ch13.negative_log_likelihood(model, prompts, texts) == pytest.approx(total / 5, rel=1e-5)


def test_speeches_need_enough_text():
    """Fails if a continuation is shorter than asked for, or too few speeches are no error."""
    found = ch13.speeches(TEXT, 4, 30)
    assert len(found) == 4
    for name, text in found:
        assert name.startswith("SPEAKER")
        assert len(text) == 30
        assert name + text in TEXT
    with pytest.raises(ValueError, match="wanted 4 speeches followed by 30000 characters, found 0"):
        ch13.speeches(TEXT, 4, 30_000)


def test_sampling_records_every_way(play):
    """Fails if a way is missing, its text is of another length, or greedy decoding is not the least varied."""
    results = ch13.gpt_sampling(0, 1, 2, 16, block=40, steps=60, learning_rate=0.01, texts=3, length=25)["results"]
    json.dumps(results, allow_nan=False)
    assert list(results) == ["model", "real text", *ch13.WAYS]
    assert results["real text"]["sample"] in TEXT
    for way in ch13.WAYS:
        assert len(results[way]["sample"]) == len("SPEAKER A:\n") + 25
    assert results["greedy"]["nll"] < results["pure sampling"]["nll"] < results["temperature 1.3"]["nll"]


# --- the cache --------------------------------------------------------------------


def test_cache_records_times_and_bytes():
    """Fails if a row is missing, or the bytes of the tensors are not the formula's."""
    results = ch13.gpt_cache(0, (2, 4, 8), (1, 3), 2, 2, 8, 9, rounds=1, written=4)["results"]
    json.dumps(results, allow_nan=False)
    for B in (1, 3):
        for name in ("cache", "no cache"):
            assert len(results[f"{name}, batch {B}"]["seconds"]) == 3
        memory = results[f"memory, batch {B}"]
        assert memory["formula_bytes"] == memory["measured_bytes"] == [2 * 2 * B * T * 8 * 4 for T in (2, 4, 8)]
        assert results[f"writing, batch {B}"]["speedup"] > 0


def test_both_steps_give_the_same_logits():
    """Fails if the timed functions compute different things, or a call changes what the next one computes."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(9, 12, 8, 2, 2, dropout=0.0)).eval()
    steps = ch13.token_steps(model, B=3, T=6)
    first = steps["cache"]()
    torch.testing.assert_close(first, steps["no cache"](), rtol=1e-4, atol=1e-6)
    assert torch.equal(first, steps["cache"]())


# --- tasks named by a prefix ------------------------------------------------------


def test_prefix_data_against_plain_python():
    """Fails if an answer is wrong, a question is trained on, or a training input is one kept for testing."""
    ids, targets = ch13.prefix_batch(4, 5, torch.Generator().manual_seed(0))
    assert ids.shape == targets.shape == (12, 11)
    answer = {"copy": list, "reverse": lambda x: x[::-1], "sort": sorted}
    for row, wanted in zip(ids.tolist(), targets.tolist(), strict=True):
        task, letters, separator = list(ch13.TASKS)[row[0] - 8], row[1:6], row[6]
        assert separator == 11
        assert wanted == [-100] * 6 + answer[task](letters)
        assert row[7:] == wanted[6:-1]
        assert sum(letters) % 8
    test = ch13.draw_inputs(5, 4, torch.Generator().manual_seed(0), test=True)
    assert (test.sum(1) % 8 == 0).all()


def test_a_prompt_without_prefix_is_one_shorter():
    """Fails if the prefix is at another place, or stays when it is left out."""
    x = torch.tensor([[3, 1, 2]])
    assert ch13.prefix_prompts(x, "sort").tolist() == [[10, 3, 1, 2, 11]]
    assert ch13.prefix_prompts(x).tolist() == [[3, 1, 2, 11]]


def test_prefix_table_scores_every_answer(monkeypatch):
    """Fails if answers are scored against the wrong task, or a prefix is not handed on."""
    monkeypatch.setattr(ch13, "prefix_answers", lambda model, x, task: ch13.TASKS[task or "copy"](x))
    table = ch13.prefix_table(None, 6, torch.Generator().manual_seed(0), 200)
    assert list(table) == ["copy", "reverse", "sort", "no prefix"]
    for task in ch13.TASKS:
        assert table[task][task] == 1
    assert table["no prefix"]["copy"] == 1
    assert table["copy"]["reverse"] < 0.1
    assert table["reverse"]["sort"] < 0.1


def test_prefix_training_learns():
    """Fails if the loss does not fall, or the record lacks a row."""
    found = ch13.gpt_prefix(0, steps=30, length=2, size=8, width=16, layers=1, heads=2, tested=5)
    json.dumps(found, allow_nan=False)
    assert list(found["results"]) == ["copy", "reverse", "sort", "no prefix", "training"]
    assert found["history"]["training"][-1]["step"] == 30
    assert found["results"]["training"]["loss"] < found["history"]["training"][0]["loss"]


# --- size -------------------------------------------------------------------------


def test_operations_against_the_formulas():
    """Fails if a count is not the hand-worked one: products with matrices, and attention's two of T^2 D."""
    layers, heads, D, V, T = 2, 3, 12, 11, 7
    row = ch13.operation_row(layers, heads, D, V, T)
    matrices = layers * 12 * D * D + V * D
    small = layers * (3 * D + D + 4 * D + D + 4 * D) + 2 * D  # biases and norms
    assert row["without_positions"] == matrices + small == row["parameters"] - T * D
    assert row["non_embedding"] == matrices + small - V * D
    assert row["forward"] == 2 * matrices + 4 * layers * T * D
    assert row["training"] == 3 * row["forward"]
    assert row["2N + attention"] - row["forward"] == 2 * small
    assert row["6N + attention"] - row["training"] == 6 * small


def test_memory_is_that_of_the_tensors():
    """Fails if a part of a training step is missing or counted twice, or the peak is not that of a training step."""
    row = ch13.memory_row(1, 2, 96, 300, 6, 3)
    model = GPT(GPTConfig(300, 6, 96, 1, 2, dropout=0.0))
    parameters = number_of_parameters(model)
    assert row["weights"] == row["gradients"] == 4 * parameters
    assert row["moments"] == 8 * parameters
    logits_alone = cost.count_activations(model, torch.zeros(3, 6, dtype=torch.int64))
    loss = 3 * 6 * 300 + 1  # log-probabilities and the number of targets
    assert row["activations"] == 4 * (logits_alone + loss)
    assert row["sum"] == row["activations"] + 16 * parameters
    assert row.get("peak", row["sum"]) > 3 * row["weights"]  # left out where the system does not tell


def test_scaling_records_every_size(play, monkeypatch):
    """Fails if a row is missing, an unknown peak is written down, or the loss is of an untrained model."""
    monkeypatch.setattr(cost, "peak_memory", lambda statements, setup: [None])
    found = ch13.gpt_scaling(0, ("32 x 2",), 11, 8, 3, steps=40, contexts=(8,), memory_batch=2)["results"]
    json.dumps(found, allow_nan=False)
    assert list(found) == ["operations 32 x 2, T = 8", "memory 32 x 2", "loss 32 x 2"]
    assert "peak" not in found["memory 32 x 2"]
    assert found["loss 32 x 2"]["valid_loss"] < 0.9 * math.log(len(set(TEXT)))
