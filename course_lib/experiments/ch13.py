r"""Recorded runs of chapter 13: a GPT on Shakespeare beside nanoGPT, and what writing, memory, tasks and size do to it.

Read in this order: `shakespeare_gpt`, two models in training side by side (`Learner`); `gpt_sampling`, how texts differ
with the way their characters are drawn; `gpt_cache`, the time of a token; `gpt_prefix`, several tasks in one model;
`gpt_scaling`, operations, memory and loss by size.

The data are tiny Shakespeare's characters: the first 90 % are for training, the last 10 % for validation. What was
chosen was chosen on another text: the last ninth of the training text, cut off for that (--set choose=True). Times are
seconds of one process (`time.process_time`) on one thread.

Notebook: 13.
"""

import re
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib import cost, data
from course_lib.experiments import experiment
from course_lib.experiments.nanogpt import NanoGPT, nanogpt_optimizer, nanogpt_rate
from course_lib.gpt import GPT, GPTConfig, generate
from course_lib.optim import cosine, decay_groups
from course_lib.positions import RoPE
from course_lib.tasks import number_of_parameters
from course_lib.train import pick_device
from course_lib.transformer import normal_start

# --- models and training ----------------------------------------------------------


def squared_relu(x):
    """Square of the positive part; cheaper than GELU on a CPU (So et al. 2021, "Primer", arXiv:2109.08668)."""
    return F.relu(x).square()


def make_gpt(vocab_size, block, layers, heads, width, dropout=0.0, learned=False, std=0.05):
    """The course's GPT with rotary positions, squared ReLUs and a wider start; `learned`: with a table of positions."""
    config = GPTConfig(vocab_size, block, width, layers, heads, dropout=dropout, activation="gelu")
    model = normal_start(GPT(config, None if learned else RoPE(width // heads)), std)
    for layer in model.encoder.layers:
        layer.activation = squared_relu
        for into_stream in (layer.self_attn.out_proj, layer.linear2):  # as `GPT` does
            nn.init.normal_(into_stream.weight, std=std / (2 * layers) ** 0.5)
    return model


def gpt_loss(model, x, y):
    """Mean cross-entropy of the next tokens, in nats."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def nanogpt_loss(model, x, y):
    """The same, which nanoGPT computes itself."""
    return model(x, y)[1]


def windows(ids, block, batch_size, generator):
    """Cut B pieces at random places out of a text.

    Args:
        ids: (N,) int64, N above T.
        block: T.
        batch_size: B.
        generator: torch.Generator on the CPU.

    Returns:
        x: (B, T) int64.
        y: (B, T) int64, the tokens that follow.

    Example:
        >>> x, y = windows(torch.arange(9), 3, 2, torch.Generator().manual_seed(0))
        >>> bool((y == x + 1).all()), x.shape
        (True, torch.Size([2, 3]))
    """
    starts = torch.randint(len(ids) - block, (batch_size,), generator=generator)
    pieces = ids[starts[:, None] + torch.arange(block + 1)]
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


class Learner:
    """A model in training that can pause, so that several take turns on one machine.

    Args:
        model: nn.Module.
        loss: `loss(model, x, y)`, a mean.
        optimizer: torch.optim.Optimizer.
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
            loss = self.loss(*windows(ids, block, batch_size, self.generator))
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
        losses = [self.loss(*windows(ids, block, batch_size, generator)) for _ in range(batches)]
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
    text = data.tiny_shakespeare()
    chars = sorted(set(text))
    number = {char: i for i, char in enumerate(chars)}
    parts = data.shakespeare_split(text)
    if choose:
        cut = len(parts[0]) * 8 // 9
        parts = parts[0][:cut], parts[0][cut:]
    return *(torch.tensor([number[char] for char in part]) for part in parts), chars


def our_learner(model, steps, learning_rate, seed, *, warmup=100, betas=(0.9, 0.99), weight_decay=0.1, bf16=False):
    """Fused AdamW, warm-up, and half a cosine down to zero."""
    optimizer = torch.optim.AdamW(decay_groups(model, weight_decay), learning_rate, betas, fused=True)
    schedule = partial(cosine, warmup=min(warmup, steps), total=steps)
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


# --- drawing characters -----------------------------------------------------------

WAYS = {
    "greedy": {"top_k": 1},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.7": {"temperature": 0.7},
    "pure sampling": {},
    "temperature 1.3": {"temperature": 1.3},
    "top-k 5": {"top_k": 5},
    "top-k 40": {"top_k": 40},
    "top-p 0.8": {"top_p": 0.8},
    "top-p 0.9": {"top_p": 0.9},
    "top-p 0.95": {"top_p": 0.95},
}


def distinct(texts, n):
    """How many different n-grams of characters there are, as a share of all n-grams of all texts.

    Args:
        texts: list of str; one at least has n characters.
        n: length of an n-gram.

    Returns:
        float from 0 to 1.

    Example:
        >>> distinct(["abab", "abc"], 2)  # ab ba ab, ab bc: 3 of 5
        0.6

    Source: Li et al. (2016), "A Diversity-Promoting Objective Function", arXiv:1510.03055, section 5.3, of words.
    """
    grams = [gram for text in texts for gram in _grams(text, n)]
    return len(set(grams)) / len(grams)


def repetition(texts, n=8):
    """Share of the n-grams of characters that stood before in the same text.

    Args:
        texts: list of str; one at least has n characters.
        n: length of an n-gram.

    Returns:
        float from 0 to 1.

    Example:
        >>> repetition(["ababa", "abc"], 2)  # ab ba AB BA, ab bc: 2 of 6
        0.3333333333333333
    """
    grams = [_grams(text, n) for text in texts]
    total = sum(map(len, grams))
    return (total - sum(len(set(found)) for found in grams)) / total


def known_words(texts, known):
    """Share of the words that occur in a set; a text's last word, which may be cut off, does not count.

    Args:
        texts: list of str.
        known: set of words as `words` gives them.

    Returns:
        float from 0 to 1; 0 if there are no words.

    Example:
        >>> known_words(["Thou art thuo, no", "a"], {"thou", "art", "no"}) == 2 / 3
        True
    """
    found = [word for text in texts for word in words(text)[:-1]]
    return sum(word in known for word in found) / max(1, len(found))


def words(text):
    """Words in lower case: letters and apostrophes."""
    return re.findall(r"[a-z']+", text.lower())


def _grams(text, n):
    return [text[i : i + n] for i in range(len(text) - n + 1)]


@torch.no_grad()
def negative_log_likelihood(model, prompts, texts):
    """Mean nats a token that the model gives to texts after their prompts.

    Args:
        model: `GPT`; dropout off.
        prompts: list of lists of ids, none empty.
        texts: list of lists of ids: what follows them.

    Returns:
        float.
    """
    total = 0.0
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([*prompt, *text])
        logits = model(ids[None, :-1])[0, len(prompt) - 1 :]
        total += F.cross_entropy(logits, ids[len(prompt) :], reduction="sum").item()
    return total / sum(map(len, texts))


def speeches(text, count, length):
    r"""Cut out names of speakers with what follows them, at places spread evenly over a text.

    Args:
        text: str with speeches, "NAME:" on a line of its own after an empty line.
        count: number of speeches.
        length: characters after the name's line.

    Returns:
        list of (prompt, continuation): the name with the colon and the line's end; so many characters.

    Raises:
        ValueError: if there are too few speeches with so much text after them.

    Example:
        >>> speeches('x\n\nHAMLET:\nTo be or not', 1, 5)
        [('HAMLET:\n', 'To be')]
    """
    ends = [(m.group(1), m.end()) for m in re.finditer(r"\n\n([^\n]+:\n)", text) if m.end() + length <= len(text)]
    if len(ends) < count:
        raise ValueError(f"wanted {count} speeches followed by {length} characters, found {len(ends)}")
    chosen = [ends[i * len(ends) // count] for i in range(count)]
    return [(name, text[end : end + length]) for name, end in chosen]


@experiment("gpt-sampling", "Texts of a GPT trained on Shakespeare, drawn in ten ways, and real ones beside them.")
def gpt_sampling(
    seed, layers=4, heads=4, width=128, block=352, batch_size=3, steps=500, learning_rate=2.5e-3, texts=20, length=300
):
    """A model with a context long enough for a whole text, trained for about a minute.

    Each way continues the same prompts, names of speakers from the validation text; "real text" is what stands there.
    "nll" is the mean negative log-likelihood of the characters under the model itself, whatever way drew them.
    Distinct n-grams are counted over all texts together, repeated 8-grams within each; "known_words" is the share of
    words that occur in the training text. "sample" is the first text.
    """
    train, valid, chars = shakespeare()
    number = {char: i for i, char in enumerate(chars)}
    torch.manual_seed(seed)
    learner = our_learner(make_gpt(len(chars), block, layers, heads, width), steps, learning_rate, seed)
    learner.advance(train, block, batch_size, steps)
    model, known = learner.model.eval(), set(words("".join(chars[i] for i in train)))
    real = speeches("".join(chars[i] for i in valid), texts, length)
    prompts = [[number[char] for char in prompt] for prompt, _ in real]
    results = {"model": {"valid_loss": learner.whole(valid, block), "parameters": number_of_parameters(model)}}
    drawn = {"real text": [[number[char] for char in text] for _, text in real]}
    for way, options in WAYS.items():
        drawn[way] = generate(model, prompts, length, torch.Generator().manual_seed(seed), **options)
    for way, ids in drawn.items():
        strings = ["".join(chars[i] for i in row) for row in ids]
        results[way] = {"nll": negative_log_likelihood(model, prompts, ids), **text_statistics(strings, known)}
        results[way]["sample"] = real[0][0] + strings[0]
    return {"results": results}


def text_statistics(texts, known):
    """Variety, repetition and real words of texts, as a row."""
    return {
        "distinct_3": distinct(texts, 3),
        "distinct_4": distinct(texts, 4),
        "repetition": repetition(texts),
        "known_words": known_words(texts, known),
    }


# --- keys and values that are kept ------------------------------------------------


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
            for name, value in cost.seconds(token_steps(model, B, T), rounds).items():
                found[name].append(value)
        half = len(lengths) // 2
        for name, values in found.items():
            exponent = cost.growth_exponent(lengths[half:], values[half:])
            results[f"{name}, batch {B}"] = {"T": list(lengths), "seconds": values, "exponent": exponent}
        results[f"writing, batch {B}"] = writing_times(model, B, written)
        results[f"memory, batch {B}"] = {
            "T": list(lengths),
            "formula_bytes": [2 * layers * B * T * width * 4 for T in lengths],
            "measured_bytes": [cache_bytes(model.caches(B, T)) for T in lengths],
        }
    return {"results": results}


def token_steps(model, B, T):
    """Two functions of nothing: the token after T others, with their keys and values kept and without."""
    ids = torch.randint(model.config.vocab_size, (B, T + 1))
    caches = model.caches(B, T + 1)
    with torch.no_grad():
        model.next_logits(ids[:, :T], caches)

    @torch.no_grad()
    def with_cache():
        for cache in caches:
            cache.length = T  # forgets the token of the last call
        return model.next_logits(ids[:, T:], caches)

    @torch.no_grad()
    def without_cache():
        return model.next_logits(ids)

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


# --- tasks named by a prefix ------------------------------------------------------

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
        size: B.
        length: letters in an input.
        generator: torch.Generator.
        test: True draws only inputs that `held_out` keeps; False only the others.

    Returns:
        (B, length) int64, from 0 to 7.

    Example:
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

    Args:
        size: examples of each task.
        length: letters in an input.
        generator: torch.Generator.

    Returns:
        ids: (B, 2 length + 1) int64, B = 3 size; the texts without their last token.
        targets: (B, 2 length + 1) int64, the next tokens; -100 where they belong to the question.
    """
    inputs = {task: draw_inputs(size, length, generator) for task in TASKS}
    texts = torch.cat([torch.cat([prefix_prompts(x, task), TASKS[task](x)], 1) for task, x in inputs.items()])
    targets = texts[:, 1:].clone()
    targets[:, : length + 1] = -100
    return texts[:, :-1], targets


def train_prefix_model(seed, steps=250, length=5, size=32, width=64, layers=2, heads=4, learning_rate=3e-3):
    """One GPT with learned positions learns to copy, reverse and sort, each when its token stands in front.

    Args:
        seed: of the weights and the data.
        steps: of training.
        length: letters in an input.
        size: examples of each task in a batch.
        width: D.
        layers: N.
        heads: H.
        learning_rate: the highest.

    Returns:
        model: `GPT` in evaluation mode.
        losses: list of `steps` numbers, nats a letter of the answer.
    """
    torch.manual_seed(seed)
    model = make_gpt(PREFIX_VOCAB, 2 * length + 2, layers, heads, width, learned=True)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    schedule = partial(cosine, warmup=min(50, steps), total=steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        ids, targets = prefix_batch(size, length, generator)
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return model.eval(), losses


def prefix_answers(model, x, task=None):
    """What the model answers, letter by letter (greedy).

    Args:
        model: of `train_prefix_model`.
        x: (B, length) letters.
        task: a name in `TASKS`, or None to leave the prefix out.

    Returns:
        (B, length) int64.
    """
    return torch.tensor(generate(model, prefix_prompts(x, task).tolist(), x.shape[1], top_k=1))


def prefix_table(model, length, generator, size=300):
    """For each prefix, and without one: the share of unseen inputs that were answered as each task wants.

    Returns:
        dict of prefix to dict of task to share of answers that are right in every letter.
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
    """Rows: the prefix that was given. Columns: the share of unseen inputs whose answer is that of the task.

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


# --- size -------------------------------------------------------------------------

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
    positions = number_of_parameters(model.embedding.position)
    tokens = model.embedding.embedding.weight.numel()
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
    forward = cost.count_operations(model, ids, impl="math") / T
    with FlopCounterMode(display=False) as counter:
        model(ids, impl="math").sum().backward()
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
    row = {"activations": 4 * cost.count_activations(_WithLoss(model), x, x)}
    gpt_loss(model, x, x).backward()
    optimizer.step()
    parameters = list(model.parameters())
    row["weights"] = sum(p.nbytes for p in parameters)
    row["gradients"] = sum(p.grad.nbytes for p in parameters)
    moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    row["moments"] = sum(value.nbytes for value in moments)
    row["sum"] = sum(row.values())
    setup = "from course_lib.experiments.ch13 import two_steps"
    (peak,) = cost.peak_memory([f"two_steps({layers}, {heads}, {width}, {vocab_size}, {block}, {batch_size})"], setup)
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
