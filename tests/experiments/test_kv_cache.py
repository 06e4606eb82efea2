"""The cache's times and bytes: what is recorded, and that both timed functions compute the same."""

import json

import torch

from course_lib.experiments import kv_cache
from course_lib.gpt import GPT, GPTConfig


def test_cache_records_times_and_bytes():
    """Fails if a row is missing, or the bytes of the tensors are not the formula's."""
    results = kv_cache.gpt_cache(0, (2, 4, 8), (1, 3), 2, 2, 8, 9, rounds=1, written=4)["results"]
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
    steps = kv_cache.token_steps(model, B=3, T=6)
    first = steps["cache"]()
    torch.testing.assert_close(first, steps["no cache"](), rtol=1e-4, atol=1e-6)
    assert torch.equal(first, steps["cache"]())
