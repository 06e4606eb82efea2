"""What `make bench` measures of GPT: a training step and writing, beside nanoGPT and Hugging Face's GPT-2."""

import functools
import os
import tempfile

import torch
import torch.nn.functional as F

from benchmarks.timing import compare, quartiles, ratio, timed
from course_lib.experiments.nanogpt import NanoGPT, nanogpt_optimizer
from course_lib.generate import generate
from course_lib.gpt import GPT, GPTConfig
from course_lib.optim import decay_groups
from course_lib.utils import huggingface, number_of_parameters

VOCAB, D, LAYERS, HEADS, BATCH = 65, 128, 4, 4, 12  # nanoGPT's setting for a CPU


def gpt_training():
    """A training step without dropout: ours against nanoGPT's (which has no biases), and against Hugging Face's.

    Hugging Face's model computes GPT-2's approximate GELU; ours beside it does too: it is that model, weight by weight.
    """
    theirs = _huggingface(64)
    same = _like(theirs)
    ids = torch.randint(VOCAB, (BATCH, 64))
    with torch.no_grad():
        torch.testing.assert_close(same(ids), theirs(ids).logits, msg="ours and Hugging Face's: another function")
    steps = {
        "nanoGPT": _nanogpt_step(64, 0.0),
        "ours": _step(GPT(_config(64, 0.0))),
        "Hugging Face": _step(theirs, torch.optim.AdamW(theirs.parameters(), 1e-3)),
        "ours, the same": _step(same),
    }
    samples, note = compare(steps), _note(64)
    return [
        timed("GPT training step / nanoGPT's", ratio(samples, "ours", "nanoGPT"), 1.0, "lower", note),
        timed(
            "GPT training step: times ahead of Hugging Face's GPT-2",
            ratio(samples, "Hugging Face", "ours, the same"),
            1.15,
            "higher",
            f"{note}, the same function",
        ),
    ]


def gpt_dropout():
    """A training step with a dropout of 0.2, which nanoGPT's small models use: the same shares at the same places."""
    rows = []
    for T, goal in ((64, 0.93), (256, 0.85)):
        steps = {"nanoGPT": _nanogpt_step(T, 0.2), "ours": _step(GPT(_config(T, 0.2)))}
        found = ratio(compare(steps), "ours", "nanoGPT")
        rows.append(timed(f"GPT training step / nanoGPT's, dropout 0.2, T {T}", found, goal, "lower", _note(T)))
    return rows


def gpt_writing(prompt=8, steps=200, context=256):
    """Writing 200 tokens, batch 1 and 16: ours with a cache, nanoGPT without one, Hugging Face's generate with one."""
    rows = []
    for batch, goals in ((1, (5, 2)), (16, (15, 1.5))):
        torch.manual_seed(0)
        prompts = torch.randint(VOCAB, (batch, prompt))
        theirs = _huggingface(context).eval()
        ours, nanogpt = _like(theirs).eval(), NanoGPT(VOCAB, context, LAYERS, HEADS, D, 0.0).eval()
        greedy = {"max_new_tokens": steps, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        everything = torch.ones_like(prompts)
        same = theirs.generate(prompts, attention_mask=everything, **greedy)[:, prompt:].tolist()
        if generate(ours, prompts.tolist(), steps, top_k=1) != same:
            raise RuntimeError("ours and Hugging Face's generate do not write the same tokens")
        greedy |= {"do_sample": True, "top_k": None}
        ways = {
            "ours": functools.partial(generate, ours, prompts.tolist(), steps),
            "nanoGPT": functools.partial(nanogpt.generate, prompts, steps),
            "Hugging Face": functools.partial(theirs.generate, prompts, attention_mask=everything, **greedy),
        }
        samples, note = compare(ways, rounds=5), f"{steps} tokens after {prompt}, context {context}, D {D}, N {LAYERS}"
        for name, goal in zip(("nanoGPT", "Hugging Face"), goals, strict=True):
            label = f"writing, batch {batch}: times ahead of {name}'s generate"
            rows.append(timed(label, ratio(samples, name, "ours"), goal, "higher", note))
    return rows


def gpt2_writing(tokens=12):
    """Writing with a model of GPT-2's size, one text: the memory's time for reading its weights, over a token's time.

    Every weight is read once a token (of the table of positions one row), by products with one vector. So the time of
    one such product with a matrix of as many bytes is what the memory allows.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig(dropout=0.0)).eval()
    numbers = number_of_parameters(model) - model.positions.numel()
    matrix, vector = torch.randn(numbers // 768, 768), torch.randn(768)
    ways = {
        "write": functools.partial(generate, model, [[0]], tokens, top_k=1),
        "read": functools.partial(torch.mv, matrix, vector),
    }
    samples = compare(ways, rounds=7)
    samples["write"] = [seconds / tokens for seconds in samples["write"]]
    gigabytes, (seconds, _, _) = 4e-9 * numbers, quartiles(samples["write"])
    note = f"{gigabytes:.2f} GB a token in {1000 * seconds:.1f} ms, random weights, one thread"
    return [
        timed(
            "writing, GPT-2 124M, batch 1: of the memory's speed", ratio(samples, "read", "write"), 0.85, "higher", note
        )
    ]


def _config(T, dropout):
    return GPTConfig(VOCAB, T, D, LAYERS, HEADS, dropout=dropout, activation="gelu")


def _note(T):
    """How the step was measured."""
    return f"B {BATCH} T {T} D {D} N {LAYERS} V {VOCAB}; forward, backward, clipping, AdamW"


def _step(model, optimizer=None):
    """One training step of a model that gives logits; with ours, AdamW is fused."""
    optimizer = optimizer or torch.optim.AdamW(decay_groups(model, 0.1), 1e-3, (0.9, 0.99), fused=True)
    length = model.config.max_len if isinstance(model, GPT) else model.config.n_positions
    inputs, targets = _tokens(length)

    def step():
        optimizer.zero_grad()
        logits = model(inputs)
        logits = logits if isinstance(model, GPT) else logits.logits
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    model.train()
    return step


def _nanogpt_step(T, dropout):
    """One training step as nanoGPT does it."""
    model = NanoGPT(VOCAB, T, LAYERS, HEADS, D, dropout)
    optimizer = nanogpt_optimizer(model)
    inputs, targets = _tokens(T)

    def step():
        optimizer.zero_grad()
        model(inputs, targets)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _tokens(T):
    """Inputs and targets (B, T)."""
    ids = torch.randint(VOCAB, (BATCH, T + 1), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1], ids[:, 1:].contiguous()


def _huggingface(T):
    """Hugging Face's GPT-2 of the same sizes, without dropout."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import GPT2Config, GPT2LMHeadModel

    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"vocab_size": VOCAB, "n_positions": T, "n_embd": D, "n_layer": LAYERS, "n_head": HEADS}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropouts, bos_token_id=0, eos_token_id=0))


def _like(theirs):
    """Our GPT with the weights of Hugging Face's."""
    with tempfile.TemporaryDirectory() as folder:
        huggingface.save(folder, theirs.config.to_dict(), theirs.state_dict())
        return GPT.from_pretrained(folder)
