"""Several tasks in one GPT: the first token says which (chapter 13)."""

import time
from functools import partial

import torch
import torch.nn.functional as F
from tqdm import tqdm

from course_lib.experiments import experiment
from course_lib.experiments.shakespeare_gpt import make_gpt
from course_lib.generate import generate
from course_lib.optim import cosine_schedule
from course_lib.train import train_epoch
from course_lib.utils import number_of_parameters

LETTERS = 8
TASKS = {"copy": lambda x: x, "reverse": lambda x: x.flip(1), "sort": lambda x: x.sort(1).values}
SEPARATOR = LETTERS + len(TASKS)
PREFIX_VOCAB = SEPARATOR + 1


def held_out(x):
    """(B,) bool: inputs that are kept for testing, an eighth of all: those whose letters sum to a multiple of 8."""
    return x.sum(1) % 8 == 0


def draw_inputs(size, length, generator, test=False):
    """Letters for training, or others that never occur there.

    Args:
        test: True draws only inputs that `held_out` keeps; False only the others.

    Returns:
        (B, length) int64, from 0 to 7.

    >>> draw_inputs(2, 4, torch.Generator().manual_seed(0), test=True).sum(1) % 8
    tensor([0, 0])
    """
    x = torch.empty(0, length, dtype=torch.int64)
    while len(x) < size:
        new = torch.randint(LETTERS, (2 * size, length), generator=generator)
        x = torch.cat([x, new[held_out(new) == test]])
    return x[:size]


def prefix_prompts(x, task=None):
    """What the model reads before it answers: the task's token (None: none), the letters, a separator.

    Args:
        x: (B, length) letters.
        task: a name in `TASKS`, or None.

    Returns:
        (B, length + 2) int64; (B, length + 1) without a task.
    """
    parts = [x, torch.full((len(x), 1), SEPARATOR)]
    if task is not None:
        parts.insert(0, torch.full((len(x), 1), LETTERS + list(TASKS).index(task)))
    return torch.cat(parts, 1)


def prefix_batch(size, length, generator):
    """Examples of all tasks, equally many, as one text each: prefix, letters, separator, answer.

    Returns:
        ids: (B, 2 length + 1) int64, B = 3 size; the texts without their last token.
        targets: (B, 2 length + 1) int64, the next tokens; -100 where they belong to the question.
    """
    inputs = {task: draw_inputs(size, length, generator) for task in TASKS}
    texts = torch.cat([torch.cat([prefix_prompts(x, task), TASKS[task](x)], 1) for task, x in inputs.items()])
    targets = texts[:, 1:].clone()
    targets[:, : length + 1] = -100
    return texts[:, :-1], targets


def answer_loss(model, batch):
    """The mean cross-entropy over the letters of the answers, in the form that `course_lib.train` takes."""
    ids, targets = batch
    return {"loss": F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-100), "count": 1}


def train_prefix_model(seed, steps=250, length=5, size=32, width=64, layers=2, heads=4, learning_rate=3e-3):
    """One GPT with learned positions learns to copy, reverse and sort, each when its token stands in front.

    Args:
        size: examples of each task in a batch.

    Returns:
        model: `GPT` in evaluation mode.
        losses: list of `steps` numbers, nats a letter of the answer.
    """
    torch.manual_seed(seed)
    model = make_gpt(PREFIX_VOCAB, 2 * length + 2, layers, heads, width, learned=True)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    schedule = partial(cosine_schedule, warmup=min(50, steps), total=steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in tqdm(range(steps), desc="steps", leave=False):
        batch = prefix_batch(size, length, generator)
        means = train_epoch(model, [batch], answer_loss, optimizer, scheduler=scheduler, clip_norm=1.0)
        losses.append(means["loss"])
    return model.eval(), losses


def prefix_answers(model, x, task=None):
    """What the model answers, letter by letter (greedy).

    Args:
        x: (B, length) letters.
        task: a name in `TASKS`, or None to leave the prefix out.

    Returns:
        (B, length) int64.
    """
    return torch.tensor(generate(model, prefix_prompts(x, task).tolist(), x.shape[1], top_k=1))


def prefix_table(model, length, generator, size=300):
    """For each prefix, and without one: the fraction of unseen inputs that were answered as each task wants.

    Returns:
        dict of prefix to dict of task to fraction of answers that are right in every letter.
    """
    x = draw_inputs(size, length, generator, test=True)
    table = {}
    for prefix in (*TASKS, None):
        answers = prefix_answers(model, x, prefix)
        table[prefix or "no prefix"] = {
            task: (answers == wanted(x)).all(1).double().mean().item() for task, wanted in TASKS.items()
        }
    return table


@experiment("gpt-prefix", "One GPT that copies, reverses or sorts, as the first token says; and without that token.")
def gpt_prefix(seed, steps=250, length=5, size=32, width=64, layers=2, heads=4, learning_rate=3e-3, tested=500):
    """Rows: the prefix that was given. Columns: the fraction of unseen inputs whose answer is that of the task.

    Off the diagonal stands what a wrong prefix gives: the answer of the prefix, not of the task that was meant. A few
    inputs have the same answer in two tasks. "seconds" is the time of training.
    """
    start = time.process_time()
    model, losses = train_prefix_model(seed, steps, length, size, width, layers, heads, learning_rate)
    seconds = time.process_time() - start
    results = prefix_table(model, length, torch.Generator().manual_seed(1000 + seed), tested)
    results["training"] = {"seconds": seconds, "parameters": number_of_parameters(model), "loss": losses[-1]}
    every = max(1, steps // 20)
    history = [{"step": i + 1, "loss": losses[i]} for i in range(every - 1, steps, every)]
    return {"results": results, "history": {"training": history}}
