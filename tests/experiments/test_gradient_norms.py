"""Gradients of untrained models against torch's own layers, and LayerNorm's gain against its law."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.experiments import deep_jumps, gradient_norms, training_tricks


@pytest.fixture(scope="module")
def task():
    return training_tricks.translation_task(train=60, valid=30, seed=3)


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def torch_model(residual, layers, task, seed, width=8):
    """The same untrained model from torch's own layers: the logits as a function, and the layers."""
    ours = training_tricks.make_model(residual, layers, len(task.words), seed, width)
    first = residual == "pre-ln"
    sizes, options = (width, 2, 4 * width, 0.0), {"batch_first": True, "norm_first": first}
    stack = [nn.TransformerEncoderLayer(*sizes, **options) for _ in range(layers)]
    for layer, mine in zip(stack, ours.encoder.layers, strict=True):
        layer.load_state_dict(mine.state_dict())
    streams = []

    def logits(inputs):
        x, later = ours.embedding(inputs).detach(), torch.ones(inputs.shape[1], inputs.shape[1]).triu(1).bool()
        x.requires_grad_()
        for layer in stack:
            x.retain_grad()
            streams.append(x)
            x = layer(x, src_mask=later)
        x = F.layer_norm(x, (width,)) if first else x
        return x @ ours.embedding.embedding.weight.T

    return logits, stack, streams


def mean_loss(logits, batch):
    inputs, targets = batch
    asked = targets != -100
    return F.cross_entropy(logits(inputs)[asked], targets[asked])


@pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
def test_gradient_norms_against_torchs_layers(task, residual, float64):
    """Fails if another matrix is measured, layers are turned round, the loss is a sum or the last norm is missing."""
    logits, stack, streams = torch_model(residual, 3, task, seed=2)
    mean_loss(logits, next(training_tricks.batches(task, 2, 7))).backward()
    found = gradient_norms.gradient_norms(residual, 3, 2, width=8, batch_size=7, task=task)
    assert set(found) == {"attention", "feed-forward", "stream"}
    wanted = [layer.self_attn.out_proj.weight.grad.norm().item() for layer in stack]
    assert found["attention"] == pytest.approx(wanted, rel=1e-9)
    wanted = [layer.linear2.weight.grad.norm().item() for layer in stack]
    assert found["feed-forward"] == pytest.approx(wanted, rel=1e-9)
    assert found["stream"] == pytest.approx([x.grad.norm().item() for x in streams], rel=1e-9)
    assert len({f"{norm:.3g}" for norms in found.values() for norm in norms}) == 9


@pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
def test_qkv_gradients_against_torchs_layers(task, residual, float64):
    """Fails if queries, keys and values are mixed up."""
    logits, stack, _ = torch_model(residual, 2, task, seed=2)
    mean_loss(logits, next(training_tricks.batches(task, 1002, 7))).backward()
    found = gradient_norms.qkv_gradients(residual, 2, 2, width=8, batch_size=7, task=task)
    for i, name in enumerate(["query", "key", "value"]):
        wanted = [layer.self_attn.in_proj_weight.grad[8 * i : 8 * i + 8].norm().item() for layer in stack]
        assert found[name] == pytest.approx(wanted, rel=1e-9)


def test_qkv_gradients_after_training_are_those_of_the_trained_model(task, float64):
    """Fails if gradients of the last training step are added, or the training is another one."""
    model = training_tricks.make_model("pre-ln", 2, len(task.words), 0, 8)
    optimizer, loader = torch.optim.Adam(model.parameters(), 0.0), training_tricks.batches(task, 0)
    for step in range(3):
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 2)
        optimizer.zero_grad()
        mean_loss(model, next(loader)).backward()
        optimizer.step()
    optimizer.zero_grad()
    mean_loss(model, next(training_tricks.batches(task, 1000, 7))).backward()
    options = {"learning_rate": 0.01, "warmup": 2, "width": 8, "batch_size": 7, "task": task}
    found = gradient_norms.qkv_gradients("pre-ln", 2, 0, 3, **options)
    for i, name in enumerate(["query", "key", "value"]):
        wanted = [
            layer.self_attn.in_proj_weight.grad[8 * i : 8 * i + 8].norm().item() for layer in model.encoder.layers
        ]
        assert found[name] == pytest.approx(wanted, rel=1e-9)


def test_rezero_starts_as_the_identity_and_only_alpha_moves(task, float64):
    """Fails if a matrix has a gradient at alpha = 0, the stream's differs by layer, or alpha's is not the slope."""
    found = gradient_norms.gradient_norms("rezero", 3, 2, width=8, batch_size=7, task=task)
    assert found["attention"] == found["feed-forward"] == [0.0] * 3
    assert found["stream"] == pytest.approx([found["stream"][0]] * 3, rel=1e-12)
    assert found["stream"][0] > 0
    model, batch = (
        training_tricks.make_model("rezero", 3, len(task.words), 2, 8),
        next(training_tricks.batches(task, 2, 7)),
    )
    for layer, slope in zip(model.encoder.layers, found["alpha"], strict=True):
        values = []
        for alpha in (1e-5, -1e-5):
            layer.norm1.alpha.data.fill_(alpha)
            values.append(mean_loss(model, batch).item())
        layer.norm1.alpha.data.fill_(0)
        assert slope == pytest.approx(abs(values[0] - values[1]) / 2e-5, rel=1e-4)


def test_xavier_redraws_every_matrix_of_the_layers():
    """Fails if a matrix keeps torch's size, or the packed one is drawn as if it had 3 D outputs of one kind."""
    encoder = training_tricks.make_model("pre-ln", 2, 9, 0, width=16).encoder
    before = [p.clone() for p in encoder.parameters()]
    gradient_norms._xavier(encoder.layers)
    sizes = {(48, 16): 32, (16, 16): 32, (64, 16): 80, (16, 64): 80}  # inputs + outputs
    for parameter, old in zip(encoder.parameters(), before, strict=True):
        if parameter.ndim == 2:
            bound = (6 / sizes[tuple(parameter.shape)]) ** 0.5
            assert 0.95 * bound < parameter.abs().max() <= bound
        else:
            assert torch.equal(parameter, old)


@pytest.mark.parametrize("width", [3, 16, 50])
@pytest.mark.parametrize("norm", [0.3, 7.0])
def test_the_gain_of_layer_norm_is_the_law_for_centred_inputs(width, norm):
    """Fails if sqrt(D) is D, the norm is not that of x, or the two directions that are removed are counted."""
    found = gradient_norms.layer_norm_gain(width, norm, 1, eps=0.0)
    assert found["law"] == pytest.approx(math.sqrt(width) / norm, rel=1e-12)
    assert found["largest"] == pytest.approx(found["law"], rel=1e-9)
    assert found["mean"] == pytest.approx(found["law"] * math.sqrt((width - 2) / width), rel=1e-9)


def test_the_gain_follows_what_is_left_without_the_mean():
    """Fails if x is centred when it should not be, or epsilon is left out."""
    x = torch.randn(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1
    x = x * (2 / x.norm())
    wanted = 1 / (x - x.mean()).square().mean().sqrt().item()
    found = gradient_norms.layer_norm_gain(12, 2.0, 1, centred=False, eps=0.0)
    assert found["largest"] == pytest.approx(wanted, rel=1e-9)
    assert found["largest"] > 1.2 * found["law"]
    variance = 0.01**2 / 12
    found = gradient_norms.layer_norm_gain(12, 0.01, 1, eps=1e-5)  # epsilon is larger than the variance
    assert found["largest"] == pytest.approx(1 / math.sqrt(variance + 1e-5), rel=1e-9)


@pytest.mark.parametrize(("width", "norm"), [(2, 1.0), (4, 0.0), (4, -1.0)])
def test_the_gain_refuses_what_has_no_law(width, norm):
    """Fails if a width with no direction left or an input without length is measured."""
    with pytest.raises(ValueError, match=f"got width={width} and norm={norm}"):
        gradient_norms.layer_norm_gain(width, norm, 0)


def test_the_rows_of_the_gradients_are_the_measurements(monkeypatch):
    """Fails if a row holds another setting's measurement, a ratio is turned round or ReZero's zeros are divided."""
    monkeypatch.setattr(
        gradient_norms, "translation_task", lambda seed, task=training_tricks.translation_task: task(60, 30, seed)
    )
    options = {"depths": (2,), "projection_layers": 1, "projection_steps": (0, 2), "widths": (5,), "norms": (1.0, 4.0)}
    results = gradient_norms.gradients(1, width=8, **options)["results"]
    assert len(results) == 3 * 2 + 3 * 2 + 2
    wanted = gradient_norms.gradient_norms("post-ln", 2, 1, xavier=True, width=8)
    row = results["gradients, post-ln, xavier, 2 layers"]
    assert row["attention"] == pytest.approx(wanted["attention"], rel=1e-3)
    ratio = wanted["feed-forward"][0] / wanted["feed-forward"][1]
    assert row["first_over_last"] == pytest.approx(ratio, rel=1e-3)
    assert row != results["gradients, post-ln, torch, 2 layers"]
    wanted = gradient_norms.qkv_gradients("pre-ln", 1, 1, 2, width=8)
    row = results["projections, pre-ln, 2 steps"]
    assert row["key_over_value"] == pytest.approx(wanted["key"][0] / wanted["value"][0], rel=1e-3)
    assert "first_over_last" not in results["gradients, rezero, torch, 2 layers"]
    assert "key_over_value" not in results["projections, rezero, 0 steps"]
    row = results["LayerNorm, width 5, centred"]
    assert row["norm"] == [1.0, 4.0]
    assert row["law"] == pytest.approx([5**0.5, 5**0.5 / 4], rel=1e-3)
    assert row["least"] == pytest.approx(1, rel=1e-3)
    assert results["LayerNorm, width 5, not centred"]["most"] > 1.1


@pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
def test_first_over_last_is_the_ratio_of_the_two_gradients(residual):
    """Fails if the ratio is turned round, another matrix is measured, or Xavier's row has torch's values."""
    results = gradient_norms.first_over_last(1, residuals=(residual,), depths=(2, 3))["results"]
    kinds = [f"{residual}, {kind}, {layers} layers" for kind in ("torch", "xavier") for layers in (2, 3)]
    assert list(results) == kinds
    assert len({row["ratio"] for row in results.values()}) == 4
    model = deep_jumps.make_model(1, 3, residual)
    words, backwards = deep_jumps.examples(torch.Generator().manual_seed(1))
    F.cross_entropy(model(words).flatten(0, 1), backwards.flatten()).backward()
    first, last = (model[1][i].linear2.weight.grad.norm().item() for i in (0, 2))
    assert results[f"{residual}, torch, 3 layers"]["ratio"] == pytest.approx(first / last, rel=1e-3)
