"""The time of one token with and without a key-value cache (chapter 13).

Times are seconds of one process (`time.process_time`) on one thread.
"""

import time
from functools import partial

import torch

from course_lib.cost import measure
from course_lib.experiments import experiment
from course_lib.generate import generate
from course_lib.gpt import GPT, GPTConfig


@experiment("gpt-cache", "The time of one token against the length of the text, with and without a cache.")
def gpt_cache(
    seed,
    lengths=(16, 32, 64, 128, 256, 512, 1024),
    batch_sizes=(1, 8),
    layers=4,
    heads=4,
    width=128,
    vocab_size=65,
    rounds=5,
    written=256,
):
    """GPT-2's shape with learned positions, untrained.

    "seconds" is the time of one more token for every row of the batch after so many. "writing" is the time of `written`
    tokens after a prompt of one, by `generate`. "memory" compares the formula $2 N B S D$ numbers of 4 bytes with the
    tensors that are there.
    """
    torch.manual_seed(seed)
    config = GPTConfig(vocab_size, max(lengths) + 1, width, layers, heads, dropout=0.0)
    model, results = GPT(config).eval(), {}
    for B in batch_sizes:
        found = {"cache": [], "no cache": []}
        for T in lengths:
            for name, value in measure.seconds(token_steps(model, B, T), rounds).items():
                found[name].append(value)
        half = len(lengths) // 2
        for name, values in found.items():
            exponent = measure.growth_exponent(lengths[half:], values[half:])
            results[f"{name}, batch {B}"] = {"T": list(lengths), "seconds": values, "exponent": exponent}
        results[f"writing, batch {B}"] = writing_times(model, B, written)
        results[f"memory, batch {B}"] = {
            "T": list(lengths),
            "formula_bytes": [2 * layers * B * T * width * 4 for T in lengths],
            "measured_bytes": [cache_bytes(model.start(B, T)["kv_caches"]) for T in lengths],
        }
    return {"results": results}


def token_steps(model, B, T):
    """Two functions of nothing: the token after T others, with their keys and values kept and without."""
    ids = torch.randint(model.config.vocab_size, (B, T + 1))
    state = model.start(B, T + 1)
    with torch.no_grad():
        model.step(ids[:, :T], state)

    @torch.no_grad()
    def with_cache():
        for cache in state["kv_caches"]:
            cache.length = T  # forgets the token of the last call
        return model.step(ids[:, T:], state)[0]

    @torch.no_grad()
    def without_cache():
        return model.head(model.features(ids)[:, -1])

    return {"cache": with_cache, "no cache": without_cache}


def writing_times(model, B, count):
    """Process seconds of writing so many tokens in each of B rows, with and without a cache."""
    row = {"tokens": count}
    for use_cache in (True, False):
        write = partial(generate, model, [[0]] * B, count, top_k=1, use_cache=use_cache)
        start = time.process_time()
        write()
        row["cache_seconds" if use_cache else "no_cache_seconds"] = time.process_time() - start
    return row | {"speedup": row["no_cache_seconds"] / row["cache_seconds"]}


def cache_bytes(caches):
    """Bytes of all keys and values."""
    return sum(tensor.nbytes for cache in caches for tensor in (cache.keys, cache.values))
