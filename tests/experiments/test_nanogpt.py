"""The re-typed nanoGPT: its published size, its start, and that with equal weights it is the course's GPT."""

import math

import pytest
import torch
import torch.nn.functional as F

from course_lib.experiments.nanogpt import NanoGPT, nanogpt_optimizer, nanogpt_rate
from course_lib.gpt import GPT, GPTConfig
from course_lib.utils import number_of_parameters


def nano(dropout=0.0, bias=False):
    """A small NanoGPT from seed 0: V = 11, 7 positions, 2 layers, 3 heads, D = 12."""
    torch.manual_seed(0)
    return NanoGPT(11, 7, 2, 3, 12, dropout, bias)


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
    names = {"ln_1": "ln1", "ln_2": "ln2", "attn_proj": "attn.out_proj", "c_fc": "mlp.0"}
    weights = {
        "embedding.weight": base.wte.weight,
        "head.weight": base.wte.weight,
        "positions": base.wpe.weight,
        "norm.weight": base.ln_f.weight,
        "norm.bias": base.ln_f.bias,
    }
    for i, block in enumerate(base.blocks):
        torch.nn.init.normal_(block.c_attn.bias)  # zero at the start, and then no test of it
        for ours, theirs in {**names, "mlp_proj": "mlp.2"}.items():
            for kind in ("weight", "bias"):
                weights[f"blocks.{i}.{theirs}.{kind}"] = getattr(getattr(block, ours), kind)
        for kind in ("weight", "bias"):
            weights[f"blocks.{i}.attn.in_proj_{kind}"] = getattr(block.c_attn, kind)
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
