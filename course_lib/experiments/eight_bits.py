"""Weights in 8 bits: the loss, the bytes and the time of writing, beside what the memory allows (chapter 14).

Times are seconds of one process (`time.process_time`) on one thread.
"""

import copy
import statistics
from functools import partial

import torch

from course_lib.cost import measure
from course_lib.experiments import experiment
from course_lib.experiments.shakespeare_gpt import Learner, gpt_loss, shakespeare
from course_lib.generate import generate
from course_lib.gpt import GPT, GPTConfig
from course_lib.pretrained import load_shakespeare
from course_lib.quantization import quantize_model, size_in_bytes

FORMS = {
    "float32": lambda model: model,
    "8 bits": quantize_model,
    "8 bits, also activations": partial(quantize_model, activations=True),
}


@experiment("eight-bits", "Loss, bytes and tokens a second of a GPT with weights in float32 and in 8 bits.")
def eight_bits(
    seed,
    forms=tuple(FORMS),
    name="gpt2",
    tokens=12,
    rounds=5,
    folder="",
):
    """Two models in each of the forms.

    "Shakespeare, ...": the GPT that comes with the course (or that in `folder`), its loss on the whole validation text;
    "loss_change" is relative to float32. "writing, ...": a model of the sizes of `name` with random weights, one text,
    by `generate`. Its "bytes_per_token" are read at least once a token: all but the table of positions. The output
    layer is the table of tokens, and stays in float32. "roofline_seconds" is the time in which this core reads as many
    in the product of a matrix of float32 with a vector, "share" that over the token's time, a median over rounds.
    """
    results = loss_rows(forms, folder)
    return {"results": results | writing_rows(forms, seed, GPTConfig.from_name(name), tokens, rounds)}


def loss_rows(forms, folder=""):
    """Loss and bytes of the trained model; float32 first."""
    model, chars = load_shakespeare(folder or None)
    _, valid, known = shakespeare()
    if list(chars) != known:
        raise ValueError("the model's characters are not those of the text")
    rows = {}
    for form in forms:
        changed = FORMS[form](copy.deepcopy(model))
        learner = Learner(changed, gpt_loss, None, None, 0)
        loss = learner.whole(valid, model.max_len)
        rows[f"Shakespeare, {form}"] = {"bytes": size_in_bytes(changed), "valid_loss": loss}
    first = rows[f"Shakespeare, {forms[0]}"]["valid_loss"]
    return {name: row | {"loss_change": row["valid_loss"] / first - 1} for name, row in rows.items()}


def bytes_per_token(model):
    """Bytes of the weights that a token needs: of the table of positions it takes one row, which is left out."""
    return size_in_bytes(model) - model.positions.nbytes


def writing_rows(forms, seed, config, tokens, rounds):
    """Bytes and times of a random model in each form, timed in the same rounds as the memory."""
    torch.manual_seed(seed)
    model = GPT(config).eval()
    models = {form: FORMS[form](copy.deepcopy(model)) for form in forms}
    D, whole = config.d_model, bytes_per_token(model)
    matrix, vector = torch.randn(whole // (4 * D), D), torch.randn(D)
    ways = {form: partial(generate, changed, [[0]], tokens, top_k=1) for form, changed in models.items()}
    samples = measure.time_rounds(ways | {"read": partial(torch.mv, matrix, vector)}, rounds)
    read = [seconds / matrix.nbytes for seconds in samples["read"]]  # of one byte
    rows = {}
    for form, changed in models.items():
        moved, seconds = bytes_per_token(changed), [found / tokens for found in samples[form]]
        rows[f"writing, {form}"] = {
            "bytes": size_in_bytes(changed),
            "bytes_per_token": moved,
            "seconds_per_token": statistics.median(seconds),
            "tokens_per_second": 1 / statistics.median(seconds),
            "roofline_seconds": statistics.median(read) * moved,
            "roofline_tokens_per_second": 1 / (statistics.median(read) * moved),
            "share": statistics.median(r * moved / s for r, s in zip(read, seconds, strict=True)),
        }
    return rows
