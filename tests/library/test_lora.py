"""LoRA against the updated weights written out, and against the model as it was."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import MultiHeadAttention, record_attention
from course_lib.bert import BERT, BERTConfig, BERTForSequenceClassification
from course_lib.gpt import GPT, GPTConfig
from course_lib.llama import Llama, LlamaConfig
from course_lib.lora import (
    PROJECTIONS,
    LoRAAttention,
    LoRALinear,
    LowRankUpdate,
    add_lora,
    load_lora,
    lora_parameters,
    merge_lora,
    save_lora,
)
from course_lib.positional import RelativeBias
from course_lib.train import language_model_loss, set_seed
from course_lib.utils import huggingface

EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64, where only the order of sums differs
B, T, S, H, K, N, V, F_WIDTH, RANK, ALPHA = 3, 7, 9, 3, 4, 2, 11, 20, 2, 5
D = H * K
IDS = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))
EVERY = (*PROJECTIONS, "out_proj", "mlp.0", "mlp.2")


def draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def gpt(seed=0, **changed):
    set_seed(seed)
    return GPT(GPTConfig(V, 9, D, N, H, F_WIDTH, dropout=0.0, **changed)).double()


def bert():
    set_seed(0)
    return BERTForSequenceClassification(BERT(BERTConfig(V, 9, D, N, H, F_WIDTH, dropout=0.0))).double()


def trained(model):
    """The model with updates that are not zero."""
    with torch.no_grad():
        for i, x in enumerate(lora_parameters(model).values()):
            x.copy_(draw(*x.shape, seed=i))
    return model


def state_of(model):
    return {name: x.clone() for name, x in model.state_dict().items()}


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_with_an_update_by_hand(bias):
    """Fails if the scale is not alpha / r, a matrix is transposed, or W or the bias gets a gradient."""
    linear, x, weighting = nn.Linear(4, 6, bias).double(), draw(B, T, 4), draw(B, T, 6)
    layer = LoRALinear(linear, RANK, ALPHA)
    with torch.no_grad():
        layer.update.B.copy_(draw(6, RANK))
    A, B_ = (x.detach().clone().requires_grad_() for x in (layer.update.A, layer.update.B))
    weight = linear.weight + ALPHA / RANK * B_ @ A
    torch.testing.assert_close(layer(x), F.linear(x, weight, linear.bias), **EXACT)
    wanted = torch.autograd.grad(F.linear(x, weight, linear.bias), (A, B_), weighting)
    layer(x).backward(weighting)
    torch.testing.assert_close((layer.update.A.grad, layer.update.B.grad), wanted, **EXACT)
    assert all(x.grad is None and not x.requires_grad for x in linear.parameters())


def test_the_start_is_random_times_zero():
    """Fails if B is not zero, A is, or A's spread is not 1 / sqrt(in): 4000 numbers stray by 5 / sqrt(8000) = 6 %."""
    set_seed(0)
    update = LowRankUpdate(torch.empty(7, 400), 10, ALPHA)
    assert (update.B == 0).all()
    assert abs(update.A.std().item() * 20 - 1) < 0.06
    assert (update.A.dtype, LowRankUpdate(torch.empty(7, 4).bfloat16(), 2, 1).A.dtype) == (torch.float, torch.bfloat16)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("parts", [PROJECTIONS[:1], PROJECTIONS[1:], PROJECTIONS])
def test_attention_is_that_of_the_updated_projections(parts, bias):
    """Fails if an update reaches another projection, takes another input or misses the attention's map.

    Queries, keys and values are three different tensors, then one; a scheme of positions is carried along.
    """
    set_seed(0)
    plain = MultiHeadAttention(D, H, bias=bias, position=RelativeBias(H, 2)).double()
    layer = trained(LoRAAttention(copy.deepcopy(plain), RANK, ALPHA, parts))
    with torch.no_grad():
        for part, rows in zip(PROJECTIONS, plain.in_proj_weight.chunk(3), strict=True):
            if part in parts:
                rows += ALPHA / RANK * layer.updates[part].B @ layer.updates[part].A
    for inputs in ((draw(B, T, D),), (draw(B, T, D), draw(B, S, D)), (draw(B, T, D), draw(B, S, D), draw(B, S, D) + 1)):
        torch.testing.assert_close(layer(*inputs), plain(*inputs), **EXACT)
        torch.testing.assert_close(layer.attention_weights(*inputs), plain.attention_weights(*inputs), **EXACT)


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), EVERY])
@pytest.mark.parametrize("tied", [True, False])
def test_gpt_starts_as_it_was_and_merges_into_what_it_became(targets, tied):
    """Fails if adding changes an output, or merging does, or leaves a name or a shape that the model had not."""
    model = gpt(tied=tied)
    before, state = model(IDS), state_of(model)
    assert add_lora(model, RANK, ALPHA, targets) is model
    assert torch.equal(model(IDS), before)
    kinds = [type(x) for x in model.modules()]
    assert kinds.count(LoRAAttention) == N
    assert kinds.count(LoRALinear) == (3 * N if targets == EVERY else 0)
    after = trained(model)(IDS)
    assert (after - before).abs().max() > 1e-3
    merge_lora(model)
    torch.testing.assert_close(model(IDS), after, **EXACT)
    assert {name: x.shape for name, x in model.state_dict().items()} == {name: x.shape for name, x in state.items()}
    fresh = gpt(seed=1, tied=tied)
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(IDS), after, **EXACT)
    assert [type(x) for x in model.modules()] == [type(x) for x in fresh.modules()]
    assert all(x.requires_grad for x in model.parameters())
    add_lora(model, RANK, ALPHA)  # a merged model may be adapted again


@pytest.mark.parametrize("make", [gpt, bert])
def test_a_step_changes_the_updates_alone(make):
    """Fails if a frozen weight moves, an update does not, or there are not 2 r D numbers to each projection.

    A gets its first gradient when B is no longer zero, so two steps are made.
    """
    model = add_lora(make(), RANK, ALPHA)
    names, before = set(lora_parameters(model)), state_of(model)
    assert {name for name, x in model.named_parameters() if x.requires_grad} == names
    assert sum(x.numel() for x in lora_parameters(model).values()) == N * 2 * RANK * (D + D)
    optimizer = torch.optim.SGD(lora_parameters(model).values(), 1.0)
    for _ in range(2):
        loss = F.cross_entropy(model(IDS).flatten(0, -2), IDS.flatten() if make is gpt else IDS[:, 0] % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    assert changed == names


def test_an_adapted_model_learns():
    """Fails if no gradient reaches the updates: counting on modulo 10, after training on counting down."""
    set_seed(0)
    model = GPT(GPTConfig(10, 12, 16, 1, 2, dropout=0.0))
    rows = (torch.arange(10).unsqueeze(1) + torch.arange(9)) % 10
    down, up = (rows.flip(1)[:, :-1], rows.flip(1)[:, 1:]), (rows[:, :-1], rows[:, 1:])

    def fit(parameters, batch, lr, steps):
        optimizer = torch.optim.Adam(parameters, lr)
        for _ in range(steps):
            found = language_model_loss(model, batch)
            optimizer.zero_grad()
            (found["loss"] / found["count"]).backward()
            optimizer.step()
        return (found["loss"] / found["count"]).item()

    assert fit(list(model.parameters()), down, 0.02, 80) < 0.05
    add_lora(model, 4, 8, EVERY)
    assert language_model_loss(model, up)["loss"].item() / up[1].numel() > 3
    assert fit(list(lora_parameters(model).values()), up, 0.02, 80) < 0.5


def test_the_cache_and_the_maps_of_attention_see_the_updates():
    """Fails if a step with a cache, or `record_attention`, computes with the old projections."""
    model = trained(add_lora(gpt(), RANK, ALPHA, EVERY)).eval()
    with torch.no_grad(), record_attention(model) as maps:
        whole = model(IDS)
        state = model.start(B)
        for part in (IDS[:, :3], IDS[:, 3:]):
            logits, state = model.step(part, state)
    torch.testing.assert_close(logits, whole[:, -1], **EXACT)
    assert len(maps) == N


def test_an_adapter_alone_can_be_saved(tmp_path):
    """Fails if a frozen weight is written, or a number, the scale or a trained head is missing."""
    model = trained(add_lora(bert(), RANK, ALPHA, ("q_proj", "linear1")))
    model.classifier.requires_grad_(True)
    with torch.no_grad():
        model.classifier.weight += 1
    save_lora(model, tmp_path)
    fresh = load_lora(bert(), tmp_path)
    torch.testing.assert_close(fresh.eval()(IDS), model.eval()(IDS), **EXACT)
    trainable = [{name for name, x in each.named_parameters() if x.requires_grad} for each in (model, fresh)]
    assert trainable[0] == trainable[1]
    numbers = N * RANK * (D + D + D + F_WIDTH) + sum(x.numel() for x in model.classifier.parameters())
    size = (tmp_path / "model.safetensors").stat().st_size
    assert 8 * numbers < size < 8 * numbers + 4000  # and the names


def test_an_adapter_of_another_model_is_refused(tmp_path):
    """Fails if an update that the file lacks keeps its random start, or one too many is dropped, without a word."""
    model = add_lora(gpt(), RANK, ALPHA)
    save_lora(model, tmp_path)
    config, tensors = huggingface.read(tmp_path)
    first = next(iter(tensors))
    for name, changed in {
        "missing": {name: x for name, x in tensors.items() if name != first},
        "unexpected": tensors | {"other": tensors[first]},
        "misshapen": tensors | {first: torch.ones(1, 1)},
    }.items():
        huggingface.save(tmp_path, config, changed)
        with pytest.raises(ValueError, match=name):
            load_lora(gpt(), tmp_path)


def test_evaluation_and_dropout_stay():
    """Fails if a new layer is in training where the model is not, or loses the dropout of the one it replaces."""
    model = GPT(GPTConfig(V, 9, D, N, H, F_WIDTH, dropout=0.3)).eval()
    for change in (lambda: add_lora(model, RANK, ALPHA, EVERY), lambda: merge_lora(model)):
        change()
        assert not any(part.training for part in model.modules())
        assert [block.attn.dropout.p for block in model.blocks] == [0.3] * N


def test_targets_are_compared_by_whole_parts():
    """Fails if "1" reaches layer 11 or "0" layer 10: names end with a part, not with a letter."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(12)))
    add_lora(model, 1, 1, ("1",))
    assert [i for i, layer in enumerate(model) if isinstance(layer, LoRALinear)] == [1]


def test_what_cannot_be_adapted_is_refused():
    """Fails if a slip is passed over: nothing matched, adapted twice, a tied weight; the model stays as it was."""
    model = gpt()
    for rank in (0, -1, 1.5):
        with pytest.raises(ValueError, match="rank must be a whole number"):
            add_lora(model, rank, ALPHA)
    with pytest.raises(ValueError, match=r"targets must fit the name of a layer.*blocks\.0\.attn"):
        add_lora(model, RANK, ALPHA, ("query",))
    with pytest.raises(ValueError, match=r"head must have a weight of its own.*embedding\.weight"):
        add_lora(model, RANK, ALPHA, ("head",))
    for missing in (merge_lora, lambda model: save_lora(model, "nowhere")):
        with pytest.raises(ValueError, match="must have LoRA's updates"):
            missing(model)
    assert all(x.requires_grad for x in model.parameters())
    add_lora(model, RANK, ALPHA)
    with pytest.raises(ValueError, match="must have no LoRA yet"):
        add_lora(model, RANK, ALPHA)
    assert add_lora(gpt(tied=False), RANK, ALPHA, ("head",))(IDS).shape == (B, T, V)


def test_a_llama_is_adapted_by_the_same_names():
    """Fails if the default targets do not fit projections that are linear layers of their own."""
    set_seed(0)
    model = Llama(LlamaConfig(V, 9, D, N, H, 1, F_WIDTH)).double()
    before = model(IDS)
    assert torch.equal(add_lora(model, RANK, ALPHA)(IDS), before)
    assert sorted(name.split(".")[-3] for name in lora_parameters(model)) == ["q_proj"] * 2 * N + ["v_proj"] * 2 * N
    after = trained(model)(IDS)
    torch.testing.assert_close(merge_lora(model)(IDS), after, **EXACT)
