import json
import math
import statistics

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook

from benchmarks import bench
from benchmarks.bench import Row
from course_lib.lstm_gru import ResetBeforeGRU
from course_lib.notebook import ledger


class Machine:
    """A fake clock: a call takes its price times the load, which changes with every call."""

    def __init__(self, loads=(1.0,)):
        self.now, self.calls, self.loads = 0.0, [], loads

    def clock(self):
        return self.now

    def function(self, name, price):
        def call():
            self.now += price * self.loads[len(self.calls) % len(self.loads)]
            self.calls.append(name)

        return call


def test_times_and_ratio_by_hand():
    """Fails if repeats are not divided out, or the ratio is turned round."""
    machine = Machine()
    functions = {"slow": machine.function("slow", 0.5), "fast": machine.function("fast", 0.125)}
    samples = bench.compare(functions, rounds=3, least=1.0, clock=machine.clock)
    assert samples == {"slow": [0.5] * 3, "fast": [0.125] * 3}
    assert bench.ratio(samples, "slow", "fast") == (4.0, 4.0, 4.0)
    assert bench.ratio(samples, "fast", "slow") == (0.25, 0.25, 0.25)
    # Warmed up and measured once each, then 2 and 8 calls a round, so that a timing lasts a second.
    assert (machine.calls.count("slow"), machine.calls.count("fast")) == (2 + 3 * 2, 2 + 3 * 8)


def test_the_order_is_reversed_every_other_round():
    """Fails if one function always comes first and always meets the same state of the machine."""
    machine = Machine()
    functions = {name: machine.function(name, 1.0) for name in "abc"}
    bench.compare(functions, rounds=3, least=0.0, clock=machine.clock)
    assert "".join(machine.calls[6:]) == "abc" + "cba" + "abc"


def test_only_times_of_the_same_round_are_compared():
    """Fails if all times are pooled: a machine ten times as slow in one round would then move the ratio."""
    samples = {"ours": [1.0, 10.0, 3.0, 1.0, 1.1], "base": [2.0, 20.0, 2.0, 2.0, 2.0]}
    assert bench.ratio(samples, "ours", "base") == pytest.approx((0.5, 0.5, 0.55))
    pooled = statistics.median(samples["ours"]) / statistics.median(samples["base"])
    assert abs(pooled - 0.5) > 0.04


def test_a_steady_drift_of_the_machine_cancels():
    """Fails if the order is not reversed: a load that grows with every call would favour who comes first."""
    machine = Machine(loads=[1.0 + 0.1 * n for n in range(200)])
    functions = {"a": machine.function("a", 1.0), "b": machine.function("b", 1.0)}
    samples = bench.compare(functions, rounds=40, least=0.0, clock=machine.clock)
    logs = [math.log(a / b) for a, b in zip(samples["a"], samples["b"], strict=True)]
    assert any(x > 0 for x in logs)
    assert any(x < 0 for x in logs)
    assert abs(math.log(bench.ratio(samples, "a", "b")[0])) < 0.01


@pytest.mark.parametrize(
    ("row", "passed"),
    [
        (Row("x", 0.8, 0.8), True),
        (Row("x", 0.81, 0.8), False),
        (Row("x", 2.0, 2.0, "higher"), True),
        (Row("x", 1.9, 2.0, "higher"), False),
        (Row("x", 0.5), None),
        (Row("x", None, 5.0), None),
    ],
)
def test_a_goal_is_met_on_its_own_side(row, passed):
    """Fails if "lower" and "higher" are mixed up, or a skipped item counts as met or missed."""
    assert row.passed is passed


ROWS = [
    Row("speed", 2.51, 2.0, "higher", 2.25, 2.75, "some data"),
    Row("share", 0.0125, note="for information"),
    Row("start", None, 5.0, note="skipped"),
    Row("time", 0.9, 0.8, "lower", 0.85, 0.95),
]


def test_the_table_by_hand():
    """Fails if a goal's direction, a number, a range or a verdict is not shown."""
    assert bench.table(ROWS).splitlines() == [
        "measured  goal    number  range       pass",
        "speed     >= 2    2.51    2.25..2.75  yes   some data",
        "share             0.0125                    for information",
        "start     <= 5    -                         skipped",
        "time      <= 0.8  0.9     0.85..0.95  NO",
    ]


def test_the_record_has_the_ledgers_form(tmp_path):
    """Fails if the ledger cannot read what the benchmark writes, or a skipped item gets a number."""
    ledger.save(bench.record(ROWS, 12.34), tmp_path)
    assert ledger.names(tmp_path) == ["bench"]
    assert ledger.summary("bench", "speed", "measured", tmp_path) == (2.51, 2.51, 2.51, 1)
    assert ledger.load("bench", tmp_path)["runs"][0]["results"]["start"] == {"goal": 5.0, "note": "skipped"}
    with pytest.raises(ValueError, match="has no metric 'measured'"):
        ledger.values("bench", "start", "measured", tmp_path)


@pytest.mark.parametrize(("rows", "status"), [(ROWS[:3], 0), (ROWS, 1)])
def test_the_command_prints_records_and_judges(rows, status, monkeypatch, tmp_path, capsys):
    """Fails if a missed goal ends with status 0, or nothing is recorded."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(bench, "ITEMS", (lambda: rows[:1], lambda: rows[1:]))
    for number, item in enumerate(bench.ITEMS):
        item.__name__ = f"item{number}"
    try:
        assert bench.main(["--out", str(tmp_path)]) == status
        assert capsys.readouterr().out.strip() == bench.table(rows).strip()
        recorded = json.loads((tmp_path / "bench.json").read_text())
        assert list(recorded["runs"][0]["results"]) == [row.name for row in rows]
        assert bench.main(["--only", "item0", "--out", str(tmp_path / "none")]) == 0
        assert not (tmp_path / "none").exists()
    finally:
        torch.set_num_threads(threads)


def test_fixed_batches_and_bucketed_batches_hold_the_same_reviews():
    """Fails if the two ways that are compared do not train on the same tokens."""
    generator = torch.Generator().manual_seed(0)
    sequences = [[7 + n] * length for n, length in enumerate(torch.randint(1, 9, (150,), generator=generator).tolist())]
    labels = torch.arange(150) % 2

    def content(batches):
        return sorted((ids[mask].tolist(), label.item()) for i, m, y in batches for ids, mask, label in zip(i, m, y))  # noqa: B905

    fixed = list(bench._fixed_batches(sequences, labels, 8))
    assert {ids.shape[1] for ids, _, _ in fixed} == {8}
    bucketed = bench.text.batches(sequences, labels, bench.BATCH, generator=generator)
    assert content(fixed) == content(bucketed) == sorted(zip(sequences, labels.tolist(), strict=True))


def test_generated_reviews_stand_in_for_imdb(monkeypatch, tmp_path):
    """Fails if a missing cache starts a download, or the table would not say that the reviews are generated."""
    monkeypatch.setattr(bench.datasets, "cache_folder", lambda: tmp_path)
    texts, labels, source = bench.reviews.__wrapped__()
    assert len(texts) == len(labels) == 2560
    assert sum(labels) == 1280
    assert "generated" in source
    lengths = [len(review.split()) for review in texts]
    assert 150 < statistics.median(lengths) < 210


def test_padding_does_not_reach_the_classifier():
    """Fails if the model that is timed would be another function of the padded review."""
    torch.manual_seed(0)
    model = bench.Recurrent(11).double()
    ids = torch.tensor([[4, 5, 6]])
    short = model(ids, torch.ones(1, 3, dtype=torch.bool))
    padded = model(torch.tensor([[4, 5, 6, 1, 1]]), torch.tensor([[True, True, True, False, False]]))
    torch.testing.assert_close(padded, short, atol=1e-12, rtol=0)


def test_a_missing_notebook_is_said(monkeypatch, tmp_path):
    """Fails if the benchmark breaks, or passes, where there is nothing to open."""
    monkeypatch.setattr(bench, "NOTEBOOKS", tmp_path)
    (row,) = bench.opening()
    assert (row.measured, row.passed) == (None, None)
    assert row.note.startswith("skipped: there is no notebooks/01_")


def test_the_kernel_stops_at_the_first_figure(tmp_path):
    """Fails if cells after the first figure are run, or a notebook without figures gets a time."""
    figure = "from IPython.display import display\ndisplay({'image/png': 'aGVsbG8='}, raw=True)"
    cells = [new_code_cell("x = 1"), new_code_cell(figure), new_code_cell("raise SystemError")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "figure.ipynb")
    nbformat.write(new_notebook(cells=cells[:1]), tmp_path / "none.ipynb")
    wall, cpu = bench._seconds_to_first_figure(tmp_path / "figure.ipynb")
    assert wall > 0
    assert cpu > 0
    assert bench._seconds_to_first_figure(tmp_path / "none.ipynb")[0] is None


def fake_compare(seconds, calls):
    """Stands in for `compare`: runs each function once, keeps its result, and says how long it took."""

    def compare(functions, rounds=7, **_):
        calls.append({name: function() for name, function in functions.items()})
        return {name: [seconds[name]] * rounds for name in functions}

    return compare


def test_rows_of_the_recurrent_layers(monkeypatch):
    """Fails if a ratio is turned round, a goal stands at another row, or two ways differ in their gradients."""
    calls = []
    seconds = {"fused": 1.0, "loop": 3.0, "torch.nn": 2.0, "torch.nn's loop": 6.0}
    monkeypatch.setattr(bench, "compare", fake_compare(seconds, calls))
    monkeypatch.setattr(bench, "SIZES", ((3, 4, 5), (2, 6, 7)))
    rows = bench.recurrent()
    assert [(row.name, row.measured, row.goal, row.better) for row in rows[4:10]] == [
        (f"LSTM {ways}, {size}", measured, goal, "lower")
        for size in ("B 3 T 4 D 5", "B 2 T 6 D 7")
        for ways, measured, goal in (
            ("fused / torch.nn", 0.5, 1.05),
            ("loop / torch.nn", 1.5, None),
            ("loop / torch.nn's loop", 0.5, 1.10),
        )
    ]
    assert [row.goal for row in rows] == [1.05, 1.00] * 2 + [1.05, None, 1.10] * 2 + [1.05, 1.15] * 2
    for results in calls:
        for name in results:
            torch.testing.assert_close(results[name], results["torch.nn"])
    assert [len(results) for results in calls] == [3, 3, 4, 4, 3, 3]


def test_torch_takes_its_own_loop_without_onednn():
    """Fails if the LSTM that ours is held against still runs oneDNN's kernel, or oneDNN stays off afterwards."""
    layer, x = torch.nn.LSTM(3, 4, batch_first=True), torch.rand(2, 5, 3)

    def kernels(function):
        with torch.profiler.profile() as profile:
            function(x)
        return {event.key for event in profile.key_averages() if "mkldnn" in event.key}

    assert not kernels(lambda x: bench.without_onednn(layer, x))
    assert kernels(layer) or not torch.backends.mkldnn.is_available()


def test_a_fast_path_that_is_another_function_is_not_timed(monkeypatch):
    """Fails if speed is reported for a layer whose output is not torch.nn's."""
    monkeypatch.setattr(bench, "SIZES", ((3, 4, 5),) * 2)
    monkeypatch.setattr(bench, "LAYERS", {"GRU": (ResetBeforeGRU, torch.nn.GRU, 1.0)})
    with pytest.raises(AssertionError, match="GRU: the fast path is not torch"):
        bench.recurrent()


def test_rows_of_the_published_lstms(monkeypatch):
    """Fails if an LSTM that was typed again is another function, or "ahead" is turned round."""
    calls = []
    monkeypatch.setattr(bench, "compare", fake_compare({"ours": 1.0, "labml": 2.0, "d2l": 3.0}, calls))
    found = [(row.measured, row.goal, row.better) for row in bench.published_lstms()]
    assert found == [(2.0, 2.3, "higher"), (3.0, 2.8, "higher")]
    w_ih, w_hh, b_ih, b_hh = calls[0]["ours"]
    torch.testing.assert_close(b_ih, b_hh)
    torch.testing.assert_close(calls[0]["labml"], (w_ih, w_hh, b_ih), rtol=1e-4, atol=1e-4)
    of_x, of_h, biases = (torch.cat(calls[0]["d2l"][start : start + 4], -1) for start in (0, 4, 8))
    torch.testing.assert_close((of_x.T, of_h.T, biases), (w_ih, w_hh, b_ih), rtol=1e-4, atol=1e-4)


def test_rows_of_decoding(monkeypatch):
    """Fails if a decoder starts afresh at each step, or "ahead" is turned round."""
    calls = []
    monkeypatch.setattr(bench, "compare", fake_compare({"ours": 1.0, "torch.nn": 3.0}, calls))
    assert [(row.measured, row.goal, row.better) for row in bench.decoding()] == [(3.0, 2.5, "higher")] * 2
    for results, D in zip(calls, (128, 256), strict=True):
        _, base, x = bench._same_weights(bench.LSTM, torch.nn.LSTM, 1, 100, D)
        _, whole = base(x)
        torch.testing.assert_close(results["ours"], whole)
        torch.testing.assert_close(results["torch.nn"], whole)


def test_rows_of_the_attention_layers(monkeypatch):
    """Fails if a layer that is compared is another function, forward or backward, or "ahead" is turned round."""
    calls = []
    times = {"ours": 1.0, "torch.nn": 2.0, "tutorial": 3.0}
    monkeypatch.setattr(bench, "compare", fake_compare(times, calls))
    found = [(row.measured, row.goal, row.better) for row in bench.attention_layers()]
    assert found == [(0.5, 0.97, "lower"), (3.0, 1.8, "higher")]
    for results, base in zip(calls, ("torch.nn", "tutorial"), strict=True):
        torch.testing.assert_close(results["ours"][0], results[base][0], rtol=1e-4, atol=1e-5)  # to the input
        torch.testing.assert_close(results["ours"][-1], results[base][-1])  # to the last bias
    weight, (q, k, v) = calls[1]["ours"][1], calls[1]["tutorial"][1:4]
    torch.testing.assert_close(weight, torch.cat([q, k, v]), rtol=1e-4, atol=1e-3)  # sums over 25,600 places


def test_added_memory_is_that_of_the_peak():
    """Fails if memory that is given back before the end, or was held before, is counted wrongly."""
    mb = bench.peak_mb(
        "lambda: benchmarks.bench.torch.ones(40 * 2**18).sum() + benchmarks.bench.torch.ones(24 * 2**18).sum()"
    )
    if mb is None:
        pytest.skip("the peak of a process can be read on Linux only")
    assert 39 < mb < 46


def test_rows_of_memory(monkeypatch):
    """Fails if the shares are of the wrong processes, or the quantity is not what attention adds."""
    mb = {"ours": 30.0, "tutorial": 120.0, "projections": 20.0}
    monkeypatch.setattr(bench, "peak_mb", lambda call: next(n for name, n in mb.items() if f"'{name}'" in call))
    first, *others = bench.attention_memory()
    assert (first.measured, first.goal, first.better) == (0.1, 0.1, "lower")
    assert [row.measured for row in others] == [30.0, 120.0, 20.0]
    monkeypatch.setattr(bench, "peak_mb", lambda call: None)
    assert {row.measured for row in bench.attention_memory()} == {None}


@pytest.mark.parametrize("name", ["ours", "tutorial", "projections"])
def test_memory_is_measured_of_the_layers_that_are_timed(name, monkeypatch):
    """Fails if the layer without attention has other gradients than the others have, or ours is another function."""
    sizes = bench.tutorial_sizes
    monkeypatch.setattr(bench, "tutorial_sizes", lambda: (*sizes()[:2], torch.randn(3, 5, 32)))
    grads = bench.memory_of_layer(name)()
    assert grads[0].shape == (3, 5, 32)
    assert all(grad.abs().sum() > 0 for grad in grads if grad.shape != (96,))  # the biases of q, k, v may have none


def test_rows_of_attention_with_dropout(monkeypatch):
    """Fails if "ahead" is turned round, or dropout is not drawn on one of the two sides."""
    calls = []
    monkeypatch.setattr(bench, "compare", fake_compare({"ours": 1.0, "torch": 2.0}, calls))
    found = [(row.measured, row.goal, row.better) for row in bench.attention_dropout()]
    assert found == [(2.0, 2.3, "higher"), (2.0, 1.15, "higher")]
    for results in calls:
        for grads in results.values():
            columns = grads[2].double().mean((0, 1, 3))  # to v: the mean weight a key gets
            assert columns.std() > 1e-4
        for ours, theirs in zip(results["ours"], results["torch"], strict=True):
            assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.05)


def small_encoder(monkeypatch):
    monkeypatch.setattr(bench, "ENCODER", (4, 10, 16, 2, 24))


def test_rows_of_an_encoder_layers_training(monkeypatch):
    """Fails if a ratio is turned round, a goal stands at another dropout, or a step leaves the weights as they were."""
    small_encoder(monkeypatch)
    calls = []
    monkeypatch.setattr(bench, "compare", fake_compare({"ours": 1.0, "torch.nn": 2.0}, calls))
    assert [(row.measured, row.goal, row.better) for row in bench.encoder_training()] == [
        (0.5, 1.02, "lower"),
        (0.5, 0.93, "lower"),
    ]
    torch.manual_seed(0)
    layer, x = bench.EncoderLayer(16, 2, 24, 0.1), torch.randn(4, 10, 16)
    before = [weight.clone() for weight in layer.parameters()]
    bench._training_step(layer, x)()
    assert all(not torch.equal(old, new) for old, new in zip(before, layer.parameters(), strict=True))


def test_rows_of_an_encoders_inference(monkeypatch):
    """Fails if a ratio is turned round, a text is lost in bucketing, or gradients are kept."""
    small_encoder(monkeypatch)
    calls = []
    monkeypatch.setattr(bench, "compare", fake_compare({"ours": 1.0, "ours, in order": 3.0, "torch.nn": 2.0}, calls))
    rows = bench.encoder_inference()
    found = [(row.measured, row.goal) for row in rows]
    assert found == [(0.5, 1.03), (1.5, 1.05), (0.5, None)]
    real = [sorted(x.abs().sum(-1).count_nonzero().item() for x in batch) for batch in calls[1].values()]
    assert sum(real[0]) == sum(real[1])  # vectors that are not padding: as many in either order
    assert all(not x.requires_grad for batch in calls[1].values() for x in batch)


def test_the_classifiers_that_are_timed_are_one_function():
    """Fails if a weight is not taken over, or dropout stands elsewhere than it is said to."""
    models = bench.imdb_models(vocab_size=50)
    ids, _ = bench.generated_ids(6, 9, 50)
    outputs = {name: model.eval()(ids) for name, model in models.items()}
    for name, output in outputs.items():
        torch.testing.assert_close(output, outputs["tutorial"], msg=name)
    for name, dropouts in {"ours": (0.0, 0.1), "ours without dropout of weights": (0.0, 0.0)}.items():
        (layer,) = models[name].encoder.layers
        assert (layer.dropout.p, layer.self_attn.dropout.p) == dropouts
        assert models[name].embedding.dropout.p == models["tutorial"].dropout.p == 0.1


def test_rows_of_the_imdb_step(monkeypatch):
    """Fails if "ahead" is turned round, or a step leaves a model as it was."""
    calls = []
    seconds = {"ours": 2.0, "ours without dropout of weights": 1.0, "tutorial": 4.0, "torch.nn": 6.0}
    seconds["ours, all dropouts"] = 3.0
    models = bench.imdb_models(60)
    before = {name: model.output.weight.clone() for name, model in models.items()}
    real = bench.generated_ids
    monkeypatch.setattr(bench, "compare", fake_compare(seconds, calls))
    monkeypatch.setattr(bench, "imdb_models", lambda: models)
    monkeypatch.setattr(bench, "generated_ids", lambda B, T, V: real(6, 9, 60))
    found = [(row.measured, row.goal, row.better) for row in bench.imdb_step()]
    assert found == [(2.0, 1.6, "higher"), (4.0, 2.7, "higher"), (3.0, 1.9, "higher"), (2.0, None, "higher")]
    assert all(not torch.equal(model.output.weight, before[name]) for name, model in models.items())


def test_generated_ids_are_like_reviews():
    """Fails if lengths or frequencies are not those that are described."""
    ids, labels = bench.generated_ids(400, 200, 50_002)
    lengths = (ids != 1).sum(1)
    assert 0.3 < (lengths == 200).float().mean() < 0.55
    assert ids.max() < 50_002
    assert (ids[ids != 1] < 224).float().mean() == pytest.approx(0.5, abs=0.05)  # half of the tokens: root of V words
    assert labels.sum() == 200


def test_rows_of_the_paths_of_attention(monkeypatch):
    """Fails if the paths are mixed up, one of them is another function, or a length is missing."""
    calls = []
    monkeypatch.setattr(bench, "compare", fake_compare({"math": 3.0, "sdpa": 2.0}, calls))
    monkeypatch.setattr(bench, "peak_mb", lambda call: 7.0 if "'math'" in call else 5.0)
    rows = bench.attention_paths()
    assert [row.measured for row in rows] == [1.5, 7.0, 5.0] * 3
    assert {row.goal for row in rows} == {None}
    for results, T in zip(calls, (128, 512, 2048), strict=True):
        assert {grad.shape[2] for grad in results["math"]} == {T}
        torch.testing.assert_close(results["math"], results["sdpa"], rtol=1e-4, atol=1e-5)
