"""A GPT on Shakespeare beside nanoGPT, trained in turn by one `Learner` each (chapter 13).

The data are tiny Shakespeare's characters: the first 90 % are for training, the last 10 % for validation. What was
chosen was chosen on another text: the last ninth of the training text, cut off for that (--set choose=True). Times are
seconds of one process (`time.process_time`) on one thread.
"""

import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import datasets
from course_lib.experiments import experiment
from course_lib.experiments.nanogpt import NanoGPT, nanogpt_optimizer, nanogpt_rate
from course_lib.gpt import GPT, GPTConfig
from course_lib.optim import cosine_schedule, decay_groups
from course_lib.positional import RoPE
from course_lib.text import random_windows
from course_lib.transformer import init_weights
from course_lib.utils import number_of_parameters
from course_lib.utils.device import pick_device


def make_gpt(vocab_size, block, layers, heads, width, dropout=0.0, learned=False, std=0.05):
    """The course's GPT with rotary positions, squared ReLUs and a wider start; `learned`: with a table of positions."""
    config = GPTConfig(vocab_size, block, width, layers, heads, dropout=dropout, activation="relu_squared")
    model = GPT(config, None if learned else RoPE(width // heads))
    init_weights(model.embedding, std)
    init_weights(model.blocks, std)
    for block in model.blocks:
        for into_stream in (block.attn.out_proj, block.mlp[-1]):  # as `GPT` does
            nn.init.normal_(into_stream.weight, std=std / (2 * layers) ** 0.5)
    return model


def gpt_loss(model, x, y):
    """Mean cross-entropy of the next tokens, in nats."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def nanogpt_loss(model, x, y):
    """The same, which nanoGPT computes itself."""
    return model(x, y)[1]


class Learner:
    """A model in training that can pause, so that several take turns on one machine.

    Args:
        rate: function of a step, from 0, to its learning rate.
        seed: decides which windows it reads: equal for learners that shall read the same.
        bf16: True computes in bfloat16 where that is safe.
    """

    def __init__(self, model, loss, optimizer, rate, seed, bf16=False):
        self.model, self.optimizer, self.rate, self.bf16 = model, optimizer, rate, bf16
        self.device = next(model.parameters()).device
        self._loss = loss
        self.generator = torch.Generator().manual_seed(seed)
        self.step, self.seconds = 0, []

    def loss(self, x, y):
        """The mean loss of a batch, wherever it is."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            return self._loss(self.model, x.to(self.device), y.to(self.device))

    def advance(self, ids, block, batch_size, steps):
        """Train for so many steps; their mean loss is returned, their time appended to `seconds`."""
        self.model.train()
        total, start = 0.0, self._clock()
        for _ in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(self.step)
            loss = self.loss(*random_windows(ids, batch_size, block, self.generator))
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            total += loss.detach()
            self.step += 1
        self.seconds.append(self._clock() - start)
        return float(total) / steps

    @torch.no_grad()
    def estimate(self, ids, block, batch_size, batches):
        """Mean loss over random batches, the same ones for every learner: what nanoGPT reports."""
        self.model.eval()
        generator = torch.Generator().manual_seed(0)
        losses = [self.loss(*random_windows(ids, batch_size, block, generator)) for _ in range(batches)]
        return torch.stack(losses).mean().item()

    @torch.no_grad()
    def whole(self, ids, block, batch_size=64):
        """Mean loss over a whole text in windows that do not overlap; what is left over at its end is not read."""
        self.model.eval()
        n = (len(ids) - 1) // block
        x, y = (ids[shift : shift + n * block].view(n, block).split(batch_size) for shift in (0, 1))
        return sum(self.loss(a, b).item() * len(a) for a, b in zip(x, y, strict=True)) / n

    def _clock(self):
        """Seconds: of the process; on a GPU, which works on its own, of the wall, when it is done."""
        if self.device.type != "cuda":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()


def shakespeare(choose=False):
    """Character numbers of the training and the validation text, and the characters in the order of their numbers.

    With `choose` both come from the training text: its last ninth, a tenth of all, is the validation text.
    """
    text = datasets.tiny_shakespeare()
    chars = sorted(set(text))
    number = {char: i for i, char in enumerate(chars)}
    parts = datasets.shakespeare_split(text)
    if choose:
        cut = len(parts[0]) * 8 // 9
        parts = parts[0][:cut], parts[0][cut:]
    return *(torch.tensor([number[char] for char in part]) for part in parts), chars


def our_learner(model, steps, learning_rate, seed, *, warmup=100, betas=(0.9, 0.99), weight_decay=0.1, bf16=False):
    """Fused AdamW, warm-up, and half a cosine_schedule down to zero."""
    optimizer = torch.optim.AdamW(decay_groups(model, weight_decay), learning_rate, betas, fused=True)
    schedule = partial(cosine_schedule, warmup=min(warmup, steps), total=steps)
    return Learner(model, gpt_loss, optimizer, lambda step: learning_rate * schedule(step), seed, bf16)


# --- beside nanoGPT ---------------------------------------------------------------


@experiment("shakespeare-gpt", "nanoGPT's small setting on tiny Shakespeare, and the course's GPT of the same size.")
def shakespeare_gpt(
    seed,
    rows=("nanoGPT", "ours"),
    layers=4,
    heads=4,
    width=128,
    block=64,
    batch_size=12,
    steps=2000,
    dropout=0.0,
    warmup=100,
    nanogpt_learning_rate=1e-3,
    learning_rate=2.5e-3,
    weight_decay=0.1,
    chunk=250,
    estimates=200,
    choose=False,
    device="cpu",
    bf16=False,
):
    """Trained in turn, `chunk` steps each, on the same windows of the training text; the models after their last step.

    "nanoGPT" is the setting of its README for a CPU: learned positions, GELU, no biases, AdamW with weight decay 0.1
    and beta2 0.99, a hundred steps of warm-up, a cosine from 1e-3 to 1e-4, clipping at 1. "ours" reads as many tokens
    with as many layers, heads and units; it differs in rotary positions, squared ReLUs, biases, a start 2.5 times as
    wide, a learning rate 2.5 times as high that ends at zero, and a fused AdamW. Both losses are measured alike:
    "valid_estimate" over random windows as nanoGPT does, "valid_loss" over the whole validation text in windows that do
    not overlap; "time_share" is the time of all steps, relative to nanoGPT's.

    Chosen on the end of the training text (as --set choose=True cuts it), never on the validation text; one short run
    each, seed 0, so that small differences mean little. After 300 steps, 50 of them warm-up, start 0.05:
    rate 2.5e-3 1.987, 4e-3 2.011, 8e-3 2.106; 4e-3 with GELU 2.029. After 500 steps at 4e-3, start 0.02,
    no biases: GELU 2.029, squared ReLU 2.038, which takes less time. bfloat16 was not tried: this CPU has no fast one.

    nanoGPT's setting for a GPU (some minutes there; never run here): --set layers=6 --set heads=6 --set width=384
    --set block=256 --set batch_size=64 --set steps=5000 --set dropout=0.2 --set learning_rate=1e-3 --set device=cuda
    --set bf16=True
    """
    train, valid, chars = shakespeare(choose)
    torch.manual_seed(seed)
    sizes = {"layers": layers, "heads": heads, "width": width, "dropout": dropout}
    device = pick_device(device)

    def make(row):
        if row == "nanoGPT":
            model = NanoGPT(len(chars), block, layers, heads, width, dropout).to(device)
            optimizer = nanogpt_optimizer(model, nanogpt_learning_rate)
            rate = partial(nanogpt_rate, learning_rate=nanogpt_learning_rate, min_lr=nanogpt_learning_rate / 10)
            return Learner(model, nanogpt_loss, optimizer, partial(rate, warmup=warmup, total=steps), seed, bf16)
        model = make_gpt(len(chars), block, **sizes, learned="learned" in row).to(device)
        options = {"warmup": warmup, "weight_decay": weight_decay, "bf16": bf16}
        return our_learner(model, steps, learning_rate, seed, **options)

    learners = {row: make(row) for row in rows}
    history = in_turn(learners, train, valid, block, batch_size, steps, chunk)
    results = {}
    for row, learner in learners.items():
        results[row] = {
            "parameters": number_of_parameters(learner.model),
            "steps": steps,
            "tokens": steps * batch_size * block,
            "train_loss": history[row][-1]["train_loss"],
            "valid_estimate": learner.estimate(valid, block, batch_size, estimates),
            "valid_loss": learner.whole(valid, block),
            "seconds": sum(learner.seconds),
            "seconds_per_step": sum(learner.seconds) / steps,
        }
        if "nanoGPT" in learners:
            results[row]["time_share"] = sum(learner.seconds) / sum(learners["nanoGPT"].seconds)
    return {"results": results, "history": history}


def in_turn(learners, train, valid, block, batch_size, steps, chunk):
    """Train all learners, a chunk each in turn; the history, with nanoGPT's quick estimate over 20 batches."""
    history = {row: [] for row in learners}
    for start in range(0, steps, chunk):
        count = min(chunk, steps - start)
        for row, learner in learners.items():
            train_loss = learner.advance(train, block, batch_size, count)
            entry = {"step": learner.step, "seconds": sum(learner.seconds), "train_loss": train_loss}
            history[row].append(entry | {"valid_estimate": learner.estimate(valid, block, batch_size, 20)})
    return history


@experiment("shakespeare-gpt-positions", "The course's GPT on tiny Shakespeare with GPT-2's learned positions.")
def shakespeare_gpt_positions(seed, rows=("ours, learned positions",), steps=2000):
    """The settings are those of `shakespeare_gpt`."""
    return shakespeare_gpt(seed, rows, steps=steps)


@experiment(
    "shakespeare-gpt-time", "The course's GPT on tiny Shakespeare with a quarter fewer steps: at most nanoGPT's time."
)
def shakespeare_gpt_time(seed, rows=("ours",), steps=1500):
    """The settings are those of `shakespeare_gpt`. A step of ours took 1.0 to 1.3 times as long as one of nanoGPT's."""
    return shakespeare_gpt(seed, rows, steps=steps)
