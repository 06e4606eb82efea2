"""Operations, memory and loss of GPTs by their size (chapter 13)."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.attention import attention_backend
from course_lib.cost import measure
from course_lib.experiments import experiment
from course_lib.experiments.shakespeare_gpt import gpt_loss, make_gpt, our_learner, shakespeare
from course_lib.gpt import GPT, GPTConfig
from course_lib.utils import number_of_parameters

SIZES = {"32 x 2": (2, 2, 32), "64 x 2": (2, 4, 64), "96 x 3": (3, 4, 96), "128 x 4": (4, 4, 128)}  # N, H, D


@experiment("gpt-scaling", "Operations, memory and loss of GPTs of four sizes.")
def gpt_scaling(
    seed,
    sizes=tuple(SIZES),
    vocab_size=65,
    block=64,
    batch_size=12,
    steps=300,
    learning_rate=2.5e-3,
    contexts=(64, 1024),
    memory_batch=12,
):
    """Names are width x layers.

    "operations ..., T = ..." counts one pass over one text, forward and backward, a token, beside 2 N and 6 N and the
    attention's share: see `operation_row`. "memory ..." are bytes of a training step. "loss ..." is the loss on the
    validation text after training on so many tokens, a quarter of the text: one learning rate for all sizes, and all
    are far from trained out.
    """
    results = {}
    for name in sizes:
        for T in contexts:
            results[f"operations {name}, T = {T}"] = operation_row(*SIZES[name], vocab_size, T)
        results[f"memory {name}"] = memory_row(*SIZES[name], vocab_size, block, memory_batch)
    train, valid, chars = shakespeare()
    for name in sizes if steps else ():
        torch.manual_seed(seed)
        layers, heads, width = SIZES[name]
        model = make_gpt(len(chars), block, layers, heads, width)
        learner = our_learner(model, steps, learning_rate, seed)
        learner.advance(train, block, batch_size, steps)
        results[f"loss {name}"] = {
            **parameter_counts(model),
            "tokens": steps * batch_size * block,
            "valid_loss": learner.whole(valid, block),
            "seconds": sum(learner.seconds),
        }
    return {"results": results}


def parameter_counts(model):
    """All parameters; without positions; and those of the layers and the last norm alone, as papers on scaling count.

    A table of positions is looked up, not multiplied, and so is that of the tokens at the input; at the output the
    latter is a matrix product.
    """
    positions = 0 if model.positions is None else model.positions.numel()
    tokens = model.embedding.weight.numel()
    total = number_of_parameters(model)
    return {"parameters": total, "without_positions": total - positions, "non_embedding": total - positions - tokens}


def operation_row(layers, heads, width, vocab_size, T):
    r"""Operations a token, counted, and by the formulas.

    $$ \text{forward} \approx 2N + 4 L T D, \qquad \text{training} \approx 6N + 12 L T D $$

    with N the parameters without those of positions, L the layers: T products of a query with a key and as many of
    a weight with a value, D numbers each, are no products with parameters. Biases and norms, in N, count as if
    they were multiplied; that is all the difference.
    """
    model = GPT(GPTConfig(vocab_size, T, width, layers, heads, dropout=0.0))
    ids = torch.zeros(1, T, dtype=torch.int64)
    with attention_backend("math"):  # in which the counter sees every product
        forward = measure.count_operations(model, ids) / T
        with FlopCounterMode(display=False) as counter:
            model(ids).sum().backward()
    counts = parameter_counts(model)
    attention = 4 * layers * T * width
    return {
        **counts,
        "T": T,
        "forward": forward,
        "training": counter.get_total_flops() / T,
        "2N": 2 * counts["without_positions"],
        "2N non-embedding": 2 * counts["non_embedding"],
        "2N + attention": 2 * counts["without_positions"] + attention,
        "6N": 6 * counts["without_positions"],
        "6N non-embedding": 6 * counts["non_embedding"],
        "6N + attention": 6 * counts["without_positions"] + 3 * attention,
    }


def memory_row(layers, heads, width, vocab_size, block, batch_size):
    """Bytes of a training step with AdamW: from the tensors that are there, and the peak of the process.

    "peak" is the most that a process held while a model was made and trained for two steps; left out where the system
    does not tell. It can be below the sum: the backward pass frees activations while it makes gradients. And it can be
    above: operations need room of their own for a moment.
    """
    model = GPT(GPTConfig(vocab_size, block, width, layers, heads, dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.zeros(batch_size, block, dtype=torch.int64)
    row = {"activations": 4 * measure.count_activations(_WithLoss(model), x, x)}
    gpt_loss(model, x, x).backward()
    optimizer.step()
    parameters = list(model.parameters())
    row["weights"] = sum(p.nbytes for p in parameters)
    row["gradients"] = sum(p.grad.nbytes for p in parameters)
    moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    row["moments"] = sum(value.nbytes for value in moments)
    row["sum"] = sum(row.values())
    setup = "from course_lib.experiments.scaling import two_steps"
    (peak,) = measure.peak_memory(
        [f"two_steps({layers}, {heads}, {width}, {vocab_size}, {block}, {batch_size})"], setup
    )
    return row if peak is None else row | {"peak": peak}


class _WithLoss(nn.Module):
    """A model and its loss as one module, whose parameters `count_activations` leaves out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return gpt_loss(self.model, x, y)


def two_steps(layers, heads, width, vocab_size, block, batch_size):
    """Make a GPT and train it for two steps: what `memory_row` measures the peak of."""
    model = GPT(GPTConfig(vocab_size, block, width, layers, heads, dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.zeros(batch_size, block, dtype=torch.int64)
    for _ in range(2):
        optimizer.zero_grad()
        gpt_loss(model, x, x).backward()
        optimizer.step()
