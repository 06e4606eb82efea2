"""The exchanged parts in small: sizes, what stays equal, and the record's form."""

import json
import math

import pytest
import torch

from course_lib import datasets
from course_lib.attention import MultiHeadAttention
from course_lib.experiments import known, modern_parts
from course_lib.experiments.kv_cache import cache_bytes
from course_lib.gpt import GPT
from course_lib.llama import Llama
from course_lib.utils import number_of_parameters

TEXT = "".join(f"\n\nSPEAKER {'ABC'[i % 3]}:\nthe cat {i % 7} saw a dog and no {i % 11} hats" for i in range(60))
TINY = {"layers": 1, "heads": 4, "kv_heads": 2, "width": 8}
SIZES = {"vocab_size": 13, "block": 7, "layers": 3, "heads": 4, "kv_heads": 2, "width": 24}


@pytest.fixture
def play(monkeypatch):
    """Short speeches in place of Shakespeare's."""
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: TEXT)


def test_all_have_equal_parameters_but_one():
    """Fails if a row's F is not fitted, at the size of the record; the one with GPT-2's own F has fewer."""
    sizes = SIZES | {"vocab_size": 65, "block": 64, "layers": 4, "width": 96}
    models = modern_parts.make_rows(modern_parts.ROWS, 0, **sizes)
    counts = {row: number_of_parameters(model) for row, model in models.items()}
    fewer = counts.pop("grouped queries, same F")
    assert counts["GPT-2"] - fewer == 4 * (96 * 96 + 96)  # half of the keys' and values' projections
    assert all(abs(count / counts["GPT-2"] - 1) < 0.01 for count in counts.values())
    assert 400_000 < counts["GPT-2"] < 480_000


def test_each_row_exchanges_its_part_alone():
    """Fails if a row has another part than its name says, or a second one."""
    models = modern_parts.make_rows(modern_parts.ROWS, 0, **SIZES)
    for row, model in models.items():
        if row == "Llama":
            assert isinstance(model, Llama)
            assert model.config.num_kv_heads == 2
            continue
        assert isinstance(model, GPT)
        block = model.blocks[1]
        assert isinstance(block.ln1, torch.nn.RMSNorm if row == "RMSNorm" else torch.nn.LayerNorm)
        assert (model.config.activation == "swiglu") == (row == "SwiGLU")
        assert (model.positions is None) == (row == "RoPE")
        assert isinstance(block.attn, MultiHeadAttention) != row.startswith("grouped")


def test_grouped_queries_are_gpt2s_attention_with_repeated_keys():
    """Fails if heads share the wrong keys, a bias is missing, or the future is seen."""
    torch.manual_seed(0)
    grouped = modern_parts.GroupedQueries(12, 6, 2).double()  # K = 2
    full = MultiHeadAttention(12, 6).double()
    with torch.no_grad():
        for layer in grouped.children():
            layer.bias.normal_()
        k, v = ([p.unflatten(0, (2, 2)) for p in (x.weight, x.bias)] for x in (grouped.k_proj, grouped.v_proj))
        repeated = [[p.repeat_interleave(3, 0).flatten(0, 1) for p in pair] for pair in (k, v)]
        full.in_proj_weight.copy_(torch.cat([grouped.q_proj.weight, repeated[0][0], repeated[1][0]]))
        full.in_proj_bias.copy_(torch.cat([grouped.q_proj.bias, repeated[0][1], repeated[1][1]]))
        full.out_proj.load_state_dict(grouped.o_proj.state_dict())
    x = torch.randn(3, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(grouped(x), full(x, causal=True))


def test_cache_bytes_are_those_of_real_caches():
    """Fails if the formula is not what the models' own caches take."""
    models = modern_parts.make_rows(("GPT-2", "Llama"), 0, **SIZES)
    for row, model in models.items():
        wanted = cache_bytes(model.start(1, 9)["kv_caches"])
        assert modern_parts.sizes_of(row, model, 4, 2, 3, 24, 9)["cache_bytes"] == wanted


def test_record(play):
    """Fails if a row or number is missing, nothing is learnt, or the rate is not the row's own."""
    assert {"modern-parts", "modern-parts-rates"} <= known().keys()
    rates = {row: 1e-3 * i for i, row in enumerate(modern_parts.ROWS, 2)}
    options = TINY | {"block": 6, "batch_size": 3, "steps": 30, "warmup": 3}
    found = modern_parts.modern_parts(0, rates=rates, chunk=20, **options)
    json.dumps(found, allow_nan=False)
    assert list(found["results"]) == list(found["history"]) == list(modern_parts.ROWS)
    for row, result in found["results"].items():
        assert result["valid_loss"] < math.log(len(set(TEXT)))
        assert result["learning_rate"] == rates[row]
        assert result["seconds_per_step"] * 30 == pytest.approx(result["seconds"])


def test_rates_are_chosen_on_other_text(play, monkeypatch):
    """Fails if a rate or a row is missing, or the validation text is read."""
    asked = []
    real = modern_parts.shakespeare
    monkeypatch.setattr(modern_parts, "shakespeare", lambda choose=False: asked.append(choose) or real(choose))
    options = TINY | {"block": 6, "batch_size": 3, "steps": 3, "warmup": 1}
    found = modern_parts.modern_parts_rates(0, rates=(1e-3, 2e-3), rows=("GPT-2", "Llama"), **options)["results"]
    assert list(found) == ["GPT-2 0.001", "Llama 0.001", "GPT-2 0.002", "Llama 0.002"]
    assert asked == [True]
