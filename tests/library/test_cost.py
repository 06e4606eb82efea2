"""Costs: each formula against the measurement of the layer it speaks of, and the measurements against hand counts.

A formula and a measurement share no line of code. Sizes are pairwise different and drawn anew for each of several
cases, so that a formula with two letters exchanged, or a term that is missing, differs in some of them.
"""

import itertools
import random
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import MultiHeadAttention, attention, attention_backend
from course_lib.cost import formulas, measure
from course_lib.cost.formulas import Cost
from course_lib.cost.measure import CausalCNN, measure_cost
from course_lib.lstm_gru import GRU, LSTM
from course_lib.positional import LearnedPositions, Sinusoidal
from course_lib.rnn import RNN
from course_lib.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerDecoder, TransformerEncoder
from course_lib.transformer_models import TransformerClassifier
from course_lib.utils import number_of_parameters

CASES = range(6)


def sizes(case, *names, most=13):
    """Pairwise different sizes from 2 on, other ones in each case."""
    return random.Random(case).sample(range(2, most), len(names))


def width(case, H):
    """A multiple of H, other than the sizes above."""
    return H * random.Random(100 + case).choice([4, 5, 7])


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def math_cost(model, *inputs, **options):
    """What is measured on the path whose products can be seen."""
    with attention_backend("math"):
        return measure_cost(model, *inputs, **options)


def encoder_layers(N, D, H, F, **options):
    return [EncoderLayer(D, H, F, dropout=0.0, **options) for _ in range(N)]


def decoder_layers(N, D, H, F):
    return [DecoderLayer(D, H, F, dropout=0.0) for _ in range(N)]


# --- formula = measurement: all five numbers ------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("formula", "layer"), [(formulas.rnn_cost, RNN), (formulas.gru_cost, GRU), (formulas.lstm_cost, LSTM)]
)
def test_recurrent_layers(formula, layer, case):
    """Fails if a product, a bias, a kept state or a step is miscounted, or I and D change places."""
    B, T, D, I = sizes(case, "B", "T", "D", "I")  # noqa: E741
    assert measure_cost(layer(I, D), draw(B, T, I), backend="loop") == formula(B, T, D, I)
    assert formula(B, T, D) == formula(B, T, D, D)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dilated", [False, True])
def test_convolutions(case, dilated):
    """Fails if padding, dilation, number of layers or reach is miscounted."""
    B, T, D, kernel, layers = sizes(case, "B", "T", "D", "kernel", "layers", most=8)
    layers = min(layers, 3) if dilated else layers
    found = measure_cost(biased(CausalCNN(D, kernel, layers, dilated=dilated)), draw(B, T, D))
    assert found == formulas.cnn_cost(B, T, D, kernel, layers, dilated=dilated)


def biased(cnn):
    """No ReLU closes, whatever weights were drawn: what depends on the input does so in the gradient too."""
    for conv in cnn.layers:
        nn.init.constant_(conv.bias, 30.0)
        conv.weight.data.abs_()
    return cnn


@pytest.mark.parametrize("dilated", [False, True])
@pytest.mark.parametrize(("T", "kernel"), [(2, 3), (3, 3), (4, 3), (9, 3), (10, 3), (16, 2), (17, 2), (26, 5)])
def test_as_many_layers_as_it_takes(T, kernel, dilated):
    """Fails if the number of layers that covers T is one too few (no path) or too many (the one below has a path)."""
    layers = formulas.layers_to_cover(T, kernel, dilated=dilated)
    paths = [
        measure_cost(biased(CausalCNN(3, kernel, n, dilated=dilated)), draw(2, T, 3)).path
        for n in range(max(1, layers - 1), layers + 1)
    ]
    assert paths[-1] == layers
    assert paths[:-1] == [None] * (len(paths) - 1)


@pytest.mark.parametrize("case", CASES)
def test_bare_attention(case):
    """Fails if scores or weighted mean are miscounted, or a parameter is seen."""
    B, T, H = sizes(case, "B", "T", "H")
    D = width(case, H)

    def bare(x, backend):
        return attention(x, x, x, backend=backend)

    def over_positions(x):
        return bare(x.unflatten(-1, (H, -1)).transpose(1, 2), "math").transpose(1, 2).flatten(2)

    x = draw(B, H, T, D // H)
    wanted = formulas.attention_cost(B, T, D, H)
    assert measure_cost(bare, x, backend="math") == wanted
    assert measure.path_length(over_positions, draw(B, T, D)) == wanted.path
    assert (
        measure.count_activations(bare, x, backend="sdpa")
        == formulas.attention_cost(B, T, D, H, backend="sdpa").activations
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_multi_head_attention(case, causal):
    """Fails if a projection, the weights or their masked copy are miscounted, or H takes part where it must not."""
    B, T, H = sizes(case, "B", "T", "H")
    D = width(case, H)
    layer, x = MultiHeadAttention(D, H), draw(B, T, D)
    assert math_cost(layer, x, causal=causal) == formulas.multi_head_cost(B, T, D, H, causal=causal)
    kept = measure.count_activations(layer, x, causal=causal)
    assert kept == formulas.multi_head_cost(B, T, D, H, causal=causal, backend="sdpa").activations


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["math", "sdpa"])
@pytest.mark.parametrize(("B", "T", "H"), [(2, 5, 1), (1, 5, 3), (1, 5, 1), (1, 1, 3), (2, 1, 3)])
def test_sizes_of_one(B, T, H, backend, causal):
    """Fails if views of one head or one text do not keep the whole projection, or if one query is masked."""
    D = 4 * H
    with attention_backend(backend):
        found = measure.count_activations(MultiHeadAttention(D, H), draw(B, T, D), causal=causal)
    assert found == formulas.multi_head_cost(B, T, D, H, causal=causal, backend=backend).activations


@pytest.mark.parametrize("case", CASES)
def test_cross_attention(case):
    """Fails if queries and keys change places in a term."""
    B, T, S, H = sizes(case, "B", "T", "S", "H")
    D = width(case, H)
    layer, x, memory = MultiHeadAttention(D, H), draw(B, T, D), draw(B, S, D)
    wanted = formulas.multi_head_cost(B, T, D, H, S)
    assert math_cost(layer, x, memory)[:4] == wanted[:4]
    with attention_backend("math"):
        assert measure.path_length(lambda m, x: layer.double()(x, m), memory, x) == wanted.path
    kept = measure.count_activations(layer.float(), x, memory)
    assert kept == formulas.multi_head_cost(B, T, D, H, S, backend="sdpa").activations


@pytest.mark.parametrize("case", CASES)
def test_feed_forward(case):
    """Fails if a bias or a factor 2 is missing, or a path between positions is claimed."""
    B, T, D, hidden = sizes(case, "B", "T", "D", "F")
    network = nn.Sequential(nn.Linear(D, hidden), nn.ReLU(), nn.Linear(hidden, D))
    assert measure_cost(network, draw(B, T, D)) == formulas.feed_forward_cost(B, T, D, hidden)
    assert measure_cost(network, draw(B, 1, D)) == formulas.feed_forward_cost(B, 1, D, hidden)


@pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
@pytest.mark.parametrize("case", CASES)
def test_encoder(case, residual):
    """Fails if a norm or a sublayer is miscounted, or the path grows with the layers."""
    B, T, H, N = sizes(case, "B", "T", "H", "N", most=8)
    D, hidden = width(case, H), 17
    stack = TransformerEncoder(encoder_layers(N, D, H, hidden, residual=residual))
    causal = case % 2 == 0
    x, formula = draw(B, T, D), formulas.encoder_cost(B, T, D, H, hidden, N, causal=causal)
    assert math_cost(stack, x, causal=causal) == formula
    kept = measure.count_activations(stack, x, causal=causal)
    assert kept == formulas.encoder_cost(B, T, D, H, hidden, N, causal=causal, backend="sdpa").activations
    one = formulas.encoder_layer_cost(B, T, D, H, hidden, causal=causal)
    assert math_cost(stack.layers[0], x, causal=causal) == one
    assert (one.path, formula.path, formula.steps) == (3, 3, 6 * N)


def test_a_single_position_is_its_own_neighbour():
    """Fails if the residual connections are forgotten where first and last position are the same."""
    assert math_cost(encoder_layers(1, 6, 2, 7)[0], draw(3, 1, 6)).path == 0
    assert formulas.encoder_layer_cost(3, 1, 6, 2, 7).path == 0
    assert formulas.decoder_layer_cost(3, 1, 4, 6, 2, 7).path == 0


@pytest.mark.parametrize("case", CASES)
def test_decoder_layer(case):
    """Fails if the third sublayer is miscounted, or the causal mask's copies are."""
    B, T, S, H = sizes(case, "B", "T", "S", "H")
    D, hidden = width(case, H), 17
    (layer,), x, memory = decoder_layers(1, D, H, hidden), draw(B, T, D), draw(B, S, D)
    assert math_cost(layer, x, memory) == formulas.decoder_layer_cost(B, T, S, D, H, hidden)
    kept = measure.count_activations(layer, x, memory)
    assert kept == formulas.decoder_layer_cost(B, T, S, D, H, hidden, backend="sdpa").activations


@pytest.mark.parametrize("case", CASES)
def test_whole_transformer(case):
    """Fails if the memory counts once a layer, or the two halves' chains are added as if neither could start early."""
    B, S, T, H, N = sizes(case, "B", "S", "T", "H", "N", most=9)
    N = 1 + N % 3
    D, hidden = width(case, H), 17
    model = Transformer(
        TransformerEncoder(encoder_layers(N, D, H, hidden)), TransformerDecoder(decoder_layers(N, D, H, hidden))
    )
    source, target = draw(B, S, D), draw(B, T, D)
    assert math_cost(model, source, target) == formulas.transformer_cost(B, S, T, D, H, hidden, N)
    kept = measure.count_activations(model, source, target)
    assert kept == formulas.transformer_cost(B, S, T, D, H, hidden, N, backend="sdpa").activations


@pytest.mark.parametrize("case", CASES)
def test_classifier(case):
    """Fails if the table of embeddings or the output layer is miscounted."""
    B, T, V, H, N, classes = sizes(case, "B", "T", "V", "H", "N", "classes", most=9)
    D, hidden = width(case, H), 17
    model = TransformerClassifier(V, TransformerEncoder(encoder_layers(N, D, H, hidden)), classes)
    ids = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(0))
    assert math_cost(model, ids) == formulas.classifier_cost(B, T, V, D, H, hidden, N, classes)


def test_parameters_and_the_length():
    """Fails if the number of parameters is said to be free of T where a learned table is not."""
    encoder = TransformerEncoder(encoder_layers(1, 6, 2, 7))
    plain = formulas.classifier_cost(1, 3, 11, 6, 2, 7, 1).parameters
    assert formulas.classifier_cost(1, 500, 11, 6, 2, 7, 1).parameters == plain
    counts = [
        number_of_parameters(TransformerClassifier(11, encoder, position=position))
        for position in (None, Sinusoidal(6, 500), LearnedPositions(6, 500))
    ]
    assert counts == [plain, plain, plain + 500 * 6]


# --- against other people's numbers ---------------------------------------------


def test_torch_counts_the_same_parameters():
    """Fails if our layers, or their formulas, have other parameters than torch's."""
    D, H, hidden, N = 12, 3, 17, 2
    assert number_of_parameters(nn.MultiheadAttention(D, H)) == formulas.multi_head_cost(1, 1, D, H).parameters
    assert number_of_parameters(nn.TransformerEncoderLayer(D, H, hidden)) == (
        formulas.encoder_layer_cost(1, 1, D, H, hidden).parameters
    )
    assert number_of_parameters(nn.TransformerDecoderLayer(D, H, hidden)) == (
        formulas.decoder_layer_cost(1, 1, 1, D, H, hidden).parameters
    )
    whole = number_of_parameters(nn.Transformer(D, 4, N, N, hidden, batch_first=True))  # ends both stacks with a norm
    assert whole == formulas.transformer_cost(1, 1, 1, D, H, hidden, N).parameters + 4 * D
    for kind, formula in ((nn.RNN, formulas.rnn_cost), (nn.GRU, formulas.gru_cost), (nn.LSTM, formulas.lstm_cost)):
        assert number_of_parameters(kind(5, 7)) == formula(1, 1, 7, 5).parameters


@pytest.mark.parametrize(("D", "H", "hidden", "published"), [(512, 8, 2048, 65e6), (1024, 16, 4096, 213e6)])
def test_the_original_models(D, H, hidden, published):
    """Fails if the counts of the original paper (table 3, base and big) are missed by more than 3 per cent."""
    count = formulas.transformer_cost(1, 1, 1, D, H, hidden, 6).parameters + 37_000 * D
    assert abs(count / published - 1) < 0.03


# --- the measurements, against counts by hand -----------------------------------


def test_operations_by_hand():
    """Fails if a multiplication with its addition is not 2, or a sum or a softmax counts."""
    A, x = draw(3, 5), draw(7, 3)
    found = measure.count_operations(lambda A, x: (x @ A + 1).softmax(-1).sum(), A, x)
    assert found == 2 * 7 * 3 * 5
    per_term = sum(2 for _ in itertools.product(range(7), range(3), range(5)))
    assert found == per_term


def test_activations_by_hand():
    """Fails if a view counts by itself, a storage twice, or parameters and buffers count."""
    layer, x = nn.Linear(3, 5), draw(7, 3)
    assert measure.count_activations(layer, x) == 21
    assert measure.count_activations(lambda x: (x[:2] * x[2:4]).sum(), x) == 21  # two views keep the whole storage once
    assert measure.count_activations(lambda x: x.exp().exp(), x) == 42
    assert measure.count_activations(lambda x: x + x, x) == 0
    norm = nn.BatchNorm1d(3).eval()
    assert measure.count_activations(norm, x) == 21


@pytest.mark.parametrize(
    ("function", "steps"),
    [
        (lambda A: A @ A, 1),
        (lambda A: A @ A @ A @ A, 3),
        (lambda A: (A @ A) @ (A @ A), 2),
        (lambda A: A @ A + A @ A, 1),
        (lambda A: (A @ A).tanh() @ A, 2),
        (lambda A: torch.addmm(A @ A, A, A), 1),  # what is added does not wait
        (lambda A: torch.addmm(A, A @ A, A), 2),
        (lambda A: torch.baddbmm((A @ A)[None], A[None], (A @ A @ A)[None]), 3),
        (lambda A: F.linear(A, A @ A, A[0]), 2),
        (lambda A: F.conv1d(A[None], (A @ A)[:, :, None]), 2),
        (lambda A: A.tanh(), 0),
    ],
)
def test_steps_by_hand(function, steps):
    """Fails if a chain is too long or too short, or an addend counts as a factor."""
    assert measure.sequential_steps(function(draw(4, 4).requires_grad_())) == steps


@pytest.mark.parametrize(
    ("function", "path"),
    [
        (lambda x: x, None),
        (lambda x: x.cumsum(-2), 0),
        (lambda x: x @ x.mT @ x, 1),
        (lambda x: (x @ x.mT @ x) @ torch.eye(3, dtype=x.dtype), 2),
        (lambda x: x.cumsum(-2) + x @ x.mT @ x, 0),
        (lambda x: x.tanh(), None),
        (lambda x: (x - x.detach()) + 1.0, None),
    ],
)
def test_paths_by_hand(function, path):
    """Fails if a longer way hides a shorter one, or a position is mixed up with another: T = 5, first to last."""

    def with_a_graph(x):
        return function(x) + 0 * x

    assert measure.path_length(with_a_graph, draw(5, 3)) == path


def test_fused_rnn_has_the_same_chain():
    """Fails if torch's RNN, whose graph has other nodes than our loop, gets other numbers."""
    x, layer = draw(3, 7, 4), RNN(4, 5)
    fused, loop = measure_cost(layer, x), measure_cost(layer, x, backend="loop")
    assert fused == loop


def test_measuring_leaves_model_and_input_as_they_were():
    """Fails if the model becomes float64, gets gradients, or the input requires them afterwards."""
    layer, x = MultiHeadAttention(6, 2), draw(2, 5, 6)
    before = [p.clone() for p in layer.parameters()]
    math_cost(layer, x)
    measure.gradient_by_distance(layer, x)
    assert not x.requires_grad
    for now, then in zip(layer.parameters(), before, strict=True):
        assert torch.equal(now, then)
        assert now.grad is None


def test_gradient_by_distance():
    """Fails if distances run the other way, or batch or width is not reduced as said: compares with one at a time."""
    matrix = torch.tensor([[0.5, 0.0], [0.0, 0.5]])

    def decays(x):  # y_T = sum over d of 0.5^d x_{T-d}
        h, out = 0.0, []
        for t in range(x.shape[1]):
            h = h @ matrix + x[:, t] if t else x[:, t]
            out.append(h)
        return torch.stack(out, 1), h

    found = measure.gradient_by_distance(decays, draw(3, 5, 2))
    torch.testing.assert_close(found / found[0], 0.5 ** torch.arange(5.0))
    directions = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found[0], directions.norm(dim=1).mean())


# --- the layer of our own ---------------------------------------------------------


@pytest.mark.parametrize("dilated", [False, True])
def test_the_convolution_is_causal_and_is_what_it_says(dilated):
    """Fails if a later step is seen, or a tap or its distance is wrong: compares with the sum written out."""
    torch.manual_seed(0)
    cnn, x = CausalCNN(4, 3, 2, dilated=dilated).double(), draw(2, 12, 4).double()
    wanted = x
    for n, conv in enumerate(cnn.layers):
        gap, out = 3**n if dilated else 1, []
        for t in range(12):
            taps = [(conv.weight[..., 2 - j], t - j * gap) for j in range(3)]
            out.append(conv.bias + sum(wanted[:, place] @ tap.T for tap, place in taps if place >= 0))
        wanted = torch.stack(out, 1).relu()
    torch.testing.assert_close(cnn(x), wanted, rtol=1e-10, atol=1e-10)
    changed = x.clone()
    changed[:, 7:] += 1
    assert torch.equal(cnn(changed)[:, :7], cnn(x)[:, :7])
    cnn(x).sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in cnn.parameters())


def test_a_loaded_convolution_gives_the_same_bits(tmp_path):
    """Fails if something outside the state_dict decides the output."""
    first, second, x = CausalCNN(4, 3, 2), CausalCNN(4, 3, 2), draw(2, 6, 4)
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    second.load_state_dict(torch.load(tmp_path / "weights.pt"))
    assert torch.equal(first(x), second(x))


# --- time and memory --------------------------------------------------------------


def test_seconds_calls_each_function_and_takes_the_median(monkeypatch):
    """Fails if a repeat is not divided by, rounds are not interleaved, or the mean is taken for the median."""
    clock, calls = [0.0], []
    durations = {"a": iter([1.0, 2.0, 1.0, 1.0, 100.0]), "b": iter([1.0, 3.0, 3.0, 3.0, 3.0])}

    def work(name):
        def run():
            calls.append(name)
            clock[0] += next(durations[name])

        return run

    monkeypatch.setattr(measure.time, "process_time", lambda: clock[0])
    found = measure.seconds({"a": work("a"), "b": work("b")}, rounds=3, least=0.5)
    assert found == {"a": 1.0, "b": 3.0}
    assert calls == ["a"] * 2 + ["b"] * 2 + ["a", "b", "b", "a", "a", "b"]


def test_seconds_repeats_short_calls():
    """Fails if a call too short for the clock is timed alone."""
    calls = []
    found = measure.seconds({"append": lambda: calls.append(0)}, rounds=1, least=0.001)
    assert len(calls) > 50
    assert 0 < found["append"] < 0.001


def test_timing_has_one_thread_and_gives_the_others_back():
    """Fails if threads that wait move the clock, or the timing, or an error in it, leaves torch with one thread."""
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        measure.seconds({"look": lambda: seen.append(torch.get_num_threads())}, rounds=1, least=1e-6)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            measure.seconds({"error": lambda: 1 / 0})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak memory of a process is read on Linux")
def test_peak_memory_of_tensors():
    """Fails if what was there before counts, what is freed is used for the next one, or only the end is seen."""
    held, twice, freed = measure.peak_memory(
        ["x = base + 1", "x = (base + 1) + (base + 2)", "for _ in range(9): x = base + 1; del x"],
        setup="base = torch.ones(10_000_000)",  # 40 million bytes
    )
    assert 38e6 < held < 46e6
    assert 76e6 < twice < 130e6
    assert 38e6 < freed < 46e6


def test_peak_memory_names_the_error():
    """Fails if a statement that raises gives a number."""
    with pytest.raises(ValueError, match="measured failed: NameError: name 'y' is not defined"):
        measure.peak_memory(["y + 1"])


def test_peak_memory_where_the_system_does_not_tell(monkeypatch):
    """Fails if a missing /proc is an error instead of None."""
    elsewhere = "memory.Path = lambda name: __import__('pathlib').Path('/nowhere' + name)\n"
    monkeypatch.setattr(measure, "PEAKS", measure.PEAKS.replace("\nnames =", "\n" + elsewhere + "\nnames ="))
    assert measure.peak_memory(["torch.ones(3)"]) == [None]


def test_growth_exponent():
    """Fails if the slope is of the numbers instead of their logarithms."""
    assert measure.growth_exponent([2, 3, 7], [5 * 8, 5 * 27, 5 * 343]) == pytest.approx(3)
    assert measure.growth_exponent([10, 20], [4, 4]) == pytest.approx(0)


# --- bad input --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: formulas.rnn_cost(2, 0, 3), "T must be a whole number of at least 1, got 0"),
        (lambda: formulas.lstm_cost(2, 3, 4.0), "D must be a whole number of at least 1, got 4.0"),
        (lambda: formulas.gru_cost(2, 3, 4, 0), "input_size must be a whole number of at least 1, got 0"),
        (lambda: formulas.cnn_cost(1, 2, 3, 0), "kernel must be a whole number of at least 1, got 0"),
        (lambda: formulas.cnn_cost(1, 2, 3, 4, layers=0), "layers must be a whole number of at least 1, got 0"),
        (lambda: formulas.layers_to_cover(5, 1), "kernel must be a whole number of at least 2, got 1"),
        (lambda: formulas.layers_to_cover(0, 3), "T must be a whole number of at least 1, got 0"),
        (lambda: CausalCNN(3, -1), "kernel must be a whole number of at least 1, got -1"),
        (lambda: formulas.attention_cost(1, 2, 7, 2), "D must be a multiple of H, got D=7 and H=2"),
        (lambda: formulas.attention_cost(1, 2, 4, 2, backend="fast"), "backend must be one of 'math', 'sdpa', got"),
        (lambda: formulas.multi_head_cost(1, 2, 4, 2, S=0), "S must be a whole number of at least 1, got 0"),
        (lambda: formulas.feed_forward_cost(1, 2, 4, 0), "F must be a whole number of at least 1, got 0"),
        (lambda: formulas.encoder_cost(1, 2, 4, 2, 8, 0), "N must be a whole number of at least 1, got 0"),
        (lambda: formulas.transformer_cost(1, 2, 3, 5, 2, 8, 1), "D must be a multiple of H, got D=5 and H=2"),
        (lambda: formulas.classifier_cost(1, 2, 0, 4, 2, 8, 1), "V must be a whole number of at least 1, got 0"),
        (lambda: measure.seconds({}, rounds=0), "rounds must be a whole number of at least 1, got 0"),
        (lambda: measure.growth_exponent([1, 1], [2, 3]), "two sizes or more"),
        (lambda: measure.growth_exponent([1, 2], [0, 3]), "all positive"),
        (lambda: measure.growth_exponent([1, 2], [3]), "as many values as sizes"),
        (lambda: measure.sequential_steps(torch.ones(2)), "the output has no graph behind it"),
    ],
)
def test_wrong_sizes(call, message):
    """Fails if nonsense is counted, or the message does not name what came."""
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        call()


@pytest.mark.parametrize("measurement", [measure.count_operations, measure.path_length, measure_cost])
def test_fused_kernels_are_refused(measurement):
    """Fails if the zero that torch's counter gives for them is handed on as a count."""
    with pytest.raises(ValueError, match=r"ScaledDotProduct.* is a fused kernel .*attention_backend\('math'\)"):
        measurement(MultiHeadAttention(6, 2), draw(2, 5, 6))


def test_a_fused_loop_is_refused():
    """Fails if oneDNN's LSTM, one node without a count, gives the numbers of a layer without products."""
    with pytest.raises(ValueError, match=r"Rnn.* is a fused kernel .*backend='loop'"):
        measure_cost(LSTM(3, 4), draw(2, 5, 3))


def test_a_path_that_underflows_is_refused():
    """Fails if a very long path is called no path."""
    with pytest.raises(ValueError, match="so long that its gradient underflows"):
        measure.path_length(RNN(3, 4), draw(1, 150, 3))


def test_a_cost_has_names():
    """Fails if the fields change their order, which `measure` and the formulas share."""
    assert Cost._fields == ("parameters", "operations", "activations", "steps", "path")
