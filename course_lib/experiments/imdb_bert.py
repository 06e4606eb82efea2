r"""Recorded runs of chapter 12 on IMDB's reviews: a small BERT, pre-trained on their text, then fine-tuned.

`imdb_bert` pre-trains on the 75,000 training and unlabelled reviews and fine-tunes on the labelled ones, against the
same network from scratch; then it lets a bag of word pairs vote too. `imdb_bert_curves` has fewer labels.

The test reviews' text is not used in pre-training, and their labels decide nothing: everything is chosen on a tenth of
the training reviews, another tenth for each seed. Times are processor seconds of training alone, on one thread.

What was computed is kept in `checkpoint_folder`, and both experiments go on from there: a pre-training that was stopped
after its last finished piece, a fine-tuning or a bag from the start. Delete the folder to compute everything again.
"""

import functools
import time

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import datasets
from course_lib.bert import BERT, IGNORE, BERTConfig, BERTForPreTraining, BERTForSequenceClassification, mask_tokens
from course_lib.experiments import experiment
from course_lib.experiments.checkpoints import checkpoint_folder, load_part, save_part
from course_lib.experiments.imdb import accuracy_of, raw_reviews, test_scores
from course_lib.experiments.imdb_voting import vote_of_pairs, vote_together
from course_lib.optim import linear_schedule
from course_lib.positional import ALiBi
from course_lib.text import batches, build_vocab, numericalize, tokenize
from course_lib.train import classification_loss, evaluate, set_seed, train_epoch
from course_lib.transformer_models import with_position
from course_lib.utils import number_of_parameters
from course_lib.utils.device import device_of

SPECIALS = ("<unk>", "<pad>", "<mask>", "<sep>")
MASK, SEP = SPECIALS.index("<mask>"), SPECIALS.index("<sep>")

PRETRAINING = {
    "vocab_size": 30_000,
    "length": 128,
    "width": 128,
    "layers": 2,
    "heads": 4,
    "predicted": 8000,
    "rare": 0.01,
    "share": 0.25,
    "batch_size": 16,
    "learning_rate": 1.5e-3,
    "warmup": 300,
    "pieces": 12,
    "decay_pieces": 16,
    "steps": 500,
    "held_out": 400,
}
BAG = {"least": 2, "strengths": (1e-4,), "steps": 15}
FINE_TUNING = {
    "length": 256,
    "read": 384,
    "batch_size": 32,
    "word_dropout": 0.2,
    "dropout": 0.2,
    "pre-trained": {"epochs": 2, "learning_rate": 5e-4},
    "from scratch": {"epochs": 2, "learning_rate": 1.5e-3},
}
# For a GPU: 8 passes over all words in place of 0.6, by a network of 12 times the weights beside its table.
GPU_PRETRAINING = PRETRAINING | {
    "width": 256,
    "layers": 6,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "warmup": 500,
    "pieces": 10,
    "decay_pieces": 10,
}
GPU_FINE_TUNING = FINE_TUNING | {
    "length": 512,
    "read": 512,
    "pre-trained": {"epochs": 3, "learning_rate": 2e-4},
    "from scratch": {"epochs": 8, "learning_rate": 5e-4},
}
RATES = {"pre-trained": 5e-4, "from scratch": 1.5e-3}
CURVES = {"length": 128, "batch_size": 16, "word_dropout": 0.2, "dropout": 0.2}


# --- text ---------------------------------------------------------------------------


def _text(vocab_size):
    """The vocabulary of training and unlabelled reviews, and rows of ids of both."""
    splits = ("train", "unsup")
    tokens = {split: [tokenize(text) for text in datasets.imdb(split)[0]] for split in splits}
    vocab = build_vocab(tokens["train"] + tokens["unsup"], max_size=vocab_size, specials=SPECIALS)
    return vocab, *(_rows(tokens[split], vocab) for split in splits)


def _rows(tokens, vocab):
    """Lists of tokens as tensors of ids."""
    return [torch.tensor(numericalize(row, vocab)) for row in tokens]


def _parts(seed, fraction, vocab, unlabelled):
    """Rows and labels of each split, the unlabelled ones too; and "seen"."""
    reviews = raw_reviews(seed, fraction)
    parts = {split: (_rows(map(tokenize, texts), vocab), labels) for split, (texts, labels) in _labelled(reviews)}
    return parts | {"unsup": (unlabelled, None), "seen": reviews["seen"]}


def _labelled(reviews):
    """The splits that have labels, with their names."""
    return ((split, reviews[split]) for split in ("train", "valid", "test"))


def _windows(rows, length, generator):
    """Rows in random order, each followed by <sep>, as one text cut into windows (n, length) without padding."""
    order = torch.randperm(len(rows), generator=generator).tolist()
    text = torch.cat([F.pad(rows[i], (0, 1), value=SEP) for i in order])
    return text[: len(text) // length * length].view(-1, length)


# --- pre-training -------------------------------------------------------------------


def _chances(windows, vocab_size, predicted, rare):
    r"""(V,) how often a word may be chosen: $\min(1, \sqrt{\text{rare} / \text{its frequency}})$, 0 if it is no target.

    Targets are the `predicted` most frequent words, so the output layer has few rows. "the" says little about a review.

    Source: Mikolov et al. (2013), "Distributed Representations of Words and Phrases and their Compositionality",
    arXiv:1310.4546, equation 5.
    """
    share = torch.bincount(windows.flatten(), minlength=vocab_size) / windows.numel()
    chances = (rare / share).sqrt().clamp(max=1)
    chances[: len(SPECIALS)] = 0
    chances[len(SPECIALS) + predicted :] = 0
    return chances


def _masked(windows, chances, share, generator):
    """A batch (inputs, targets) for `_restricted_loss`."""
    maskable = torch.rand(windows.shape, generator=generator) < chances[windows]
    return mask_tokens(windows, maskable, len(chances), MASK, generator, share, first_regular_id=len(SPECIALS))


def _hidden(inputs, targets):
    """The batch without the targets that the network can see, or sees another word in place of."""
    return inputs, targets.masked_fill(inputs != MASK, IGNORE)


def _restricted_loss(model, batch, rows):
    """`course_lib.bert.masked_lm_loss` with an output layer of the first `rows` words alone."""
    inputs, targets = batch
    where = targets >= 0
    x = model.norm(F.gelu(model.transform(model.bert(inputs)[where])))
    logits, wanted = F.linear(x, model.bert.embedding.token.weight[:rows], model.bias[:rows]), targets[where]
    loss = F.cross_entropy(logits, wanted, reduction="sum")
    return {"loss": loss, "count": len(wanted), "accuracy": (logits.argmax(-1) == wanted).sum()}


class NearBERT(BERT):
    """BERT whose heads lower the scores of far tokens from the start, each to another degree (`ALiBi`)."""

    def __init__(self, config):
        super().__init__(config, pooler=False)
        self.scheme = ALiBi(config.num_heads)  # the model owns it, that it moves to a GPU with it
        with_position(self.encoder, self.scheme)
        _initialise(self)


def _initialise(model):
    """Matrices of the standard deviation 1 / sqrt(inputs): 0.02 suits a width of 768, a narrow BERT starts slowly."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "embedding" not in name:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)


def _make_bert(settings):
    """A BERT for windows, Pre-LN, without dropout and without the layer of [CLS]."""
    config = BERTConfig(
        vocab_size=len(SPECIALS) + settings["vocab_size"],
        max_len=settings["length"],
        d_model=settings["width"],
        num_layers=settings["layers"],
        num_heads=settings["heads"],
        dim_feedforward=4 * settings["width"],
        num_segments=1,
        dropout=0.0,
        residual="pre-ln",
    )
    return NearBERT(config)


def _pretrain(rows, settings, seed, name="text", device="cpu", bf16=False):
    """A pre-trained BERT and the history of its pre-training, from the last finished piece on."""
    held_out, batch_size = settings["held_out"], settings["batch_size"]
    valid = _windows(rows[-held_out:], settings["length"], _generator(0, 0))
    train = _windows(rows[:-held_out], settings["length"], _generator(seed, 0))
    set_seed(seed)
    model = BERTForPreTraining(_make_bert(settings)).to(device)
    _initialise(model)
    chances = _chances(train, model.bert.config.vocab_size, settings["predicted"], settings["rare"])
    loss = functools.partial(_restricted_loss, rows=len(SPECIALS) + settings["predicted"])
    fixed = _hidden(*_masked(valid, chances, settings["share"], _generator(0, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), settings["learning_rate"], fused=True)
    total = settings["decay_pieces"] * settings["steps"]
    scheduler = _schedule(optimizer, settings["warmup"], total)
    parts, history = {"model": model, "optimizer": optimizer, "scheduler": scheduler}, []
    name, settings = f"{name}-{seed}", settings | {"seed": seed}
    if state := load_part(name, settings):
        history = state["history"]
        for key, part in parts.items():
            part.load_state_dict(state[key])
    for piece in range(len(history) + 1, settings["pieces"] + 1):
        start, steps = time.process_time(), _piece(train, settings, chances, piece)
        means = train_epoch(model, steps, loss, optimizer, scheduler=scheduler, clip_norm=1.0, bf16=bf16)
        entry = {"piece": piece, "tokens": piece * settings["steps"] * batch_size * settings["length"]}
        entry |= {"seconds": time.process_time() - start} | {f"train_{key}": value for key, value in means.items()}
        means = evaluate(model, zip(*(part.split(batch_size) for part in fixed), strict=True), loss, bf16=bf16)
        history.append(entry | {f"valid_{key}": value for key, value in means.items()})
        save_part(name, settings, {"history": history} | {key: part.state_dict() for key, part in parts.items()})
    return model.bert, history


def _piece(windows, settings, chances, piece):
    """The batches of a piece: they go on where the last piece ended, pass after pass in a new order."""
    size, seed = settings["batch_size"], settings["seed"]
    per_pass = len(windows) // size
    for step in range((piece - 1) * settings["steps"], piece * settings["steps"]):
        number, at = divmod(step, per_pass)
        if at == 0 or step % settings["steps"] == 0:
            order = torch.randperm(len(windows), generator=_generator(seed, 1000 + number))
        chosen = windows[order[at * size : (at + 1) * size]]
        yield _masked(chosen, chances, settings["share"], _generator(seed, 10_000 + step))


def _schedule(optimizer, warmup, total):
    """A rise, then a straight line to 0."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(linear_schedule, warmup=warmup, total=total))


def _generator(seed, number):
    """A source of random numbers of its own for each seed and number."""
    return torch.Generator().manual_seed(1_000_000 * seed + number)


# --- fine-tuning --------------------------------------------------------------------


class ReviewClassifier(BERTForSequenceClassification):
    """Classes of reviews longer than BERT's `max_len`: the mean over all tokens, read in windows of one length.

    A batch of T tokens is cut into the fewest windows that BERT can read.
    """

    def __init__(self, bert, dropout):
        super().__init__(bert, dropout=dropout, pool="mean")

    def forward(self, ids, real):
        """(B, T) ids and which of them are real tokens to (B, 2) logits."""
        count = -(-ids.shape[1] // self.bert.config.max_len)
        width = -(-ids.shape[1] // count)
        short = count * width - ids.shape[1]
        windows, parts = (F.pad(x, (0, short)).view(-1, width) for x in (ids, real))
        some = parts.any(1)  # a short review's last windows may be empty
        sums = self.bert(windows[some], parts[some]).sum(1)
        sums = sums.new_zeros(len(windows), sums.shape[1]).index_put((some,), sums)
        mean = sums.view(len(ids), count, -1).sum(1) / real.sum(1, keepdim=True)
        return self.classifier(self.dropout(mean))


def _fine_tune(model, rows, labels, settings, seed, epochs, learning_rate, valid=None, bf16=False):
    """Train a classifier on the ends of labelled reviews: the history, with processor seconds."""
    size, length = settings["batch_size"], settings["length"]
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    total = epochs * -(-len(rows) // size)
    scheduler, history = _schedule(optimizer, total // 10, total), []
    for epoch in range(1, epochs + 1):
        start, generator = time.process_time(), _generator(seed, epoch)
        shown = [_hide(row[-length:], settings["word_dropout"], generator) for row in rows]
        steps = batches(shown, labels, size, generator=generator)
        means = train_epoch(model, steps, classification_loss, optimizer, scheduler=scheduler, clip_norm=1.0, bf16=bf16)
        entry = {"epoch": epoch, "seconds": time.process_time() - start}
        entry |= {f"train_{key}": value for key, value in means.items()}
        if valid:
            entry["valid_accuracy"] = accuracy_of(_logits(model, valid[0], settings["read"]), torch.tensor(valid[1]))
        history.append(entry)
    return history


def _hide(row, share, generator):
    """The row with a fraction of the words behind <mask>."""
    return row.masked_fill(torch.rand(len(row), generator=generator) < share, MASK)


@torch.no_grad()
def _logits(model, rows, length):
    """How far the logit of "positive" is above that of "negative", for all rows in their order."""
    model.eval()
    rows = [row[-length:] for row in rows]
    logits, device = torch.empty(len(rows)), device_of(model)
    for ids, mask, where in batches(rows, range(len(rows)), 128, shuffle=False):
        logits[where] = model(ids.to(device), mask.to(device)).diff(dim=1)[:, 0].cpu()
    return logits


def _classifier(settings, dropout, seed, bert=None):
    """A classifier on a BERT, on a copy of the pre-trained one if that is given."""
    set_seed(seed)
    trunk = _make_bert(settings)
    if bert:
        trunk.load_state_dict(bert.state_dict())
    return ReviewClassifier(trunk, dropout)


# --- the recorded runs --------------------------------------------------------------


@experiment("imdb-bert", "A small BERT pre-trained on IMDB's text and fine-tuned, against the same one from scratch.")
def imdb_bert(
    seed,
    variants=("pre-trained", "from scratch"),
    steps_up=("pairs", "self-training"),
    pretraining=PRETRAINING,
    fine_tuning=FINE_TUNING,
    bag=BAG,
    sure=0.9,
    fraction=0.1,
):
    """The models after their last epoch; "from scratch" is the same network without the pre-training.

    Pre-training reads 12 million of the 20 million words of the training and the unlabelled reviews, in windows of 128
    without padding; the last 400 unlabelled reviews measure it, at hidden words alone. The learning rate falls on a
    line that would reach 0 after 16 million words: the time ended at 12. In fine-tuning a review is its last 256
    words, in testing its last 384, and the mean of all its words' vectors is classified.

    Changed by the pre-training loss: with matrices of standard deviation 0.02, without `ALiBi`, a rate of 2e-3 and
    mostly rare words hidden, 7 million words taught the network to copy the chosen words that it can see, and nothing
    about the others. Learning rates and epochs of fine-tuning were set beforehand and nothing else was tried.

    "bag of pairs" is logistic regression on words and pairs of words; "with pairs" adds its logits to BERT's, with
    weights from the validation reviews, whose accuracy is then a little too good. Self-training: both together label
    the unlabelled reviews, and another bag learns from those they are sure of, too.
    """
    vocab, train, unlabelled = _text(pretraining["vocab_size"])
    bert, pretraining_history = _pretrain(train + unlabelled, pretraining, seed)
    parts = _parts(seed, fraction, vocab, unlabelled)
    results, history, found = {}, {"pre-training": pretraining_history}, {}
    for name in variants:
        model = _classifier(pretraining, fine_tuning["dropout"], seed, bert if name == "pre-trained" else None)
        results[name], history[name], found[name] = _record(name, model, parts, fine_tuning, seed)
    if "pairs" in steps_up:
        made_with = {"seed": seed, "vocab_size": len(vocab), **bag}
        row, bag_logits = vote_of_pairs(f"bag-{seed}", parts["train"], parts, made_with)
        results["bag of pairs"] = row | test_scores(bag_logits["test"], parts)
        logits = found["pre-trained"]
        results["pre-trained, with pairs"], _ = vote_together([logits, bag_logits], parts)
    if "self-training" in steps_up:
        logits = logits | {"unsup": _unlabelled_logits(model, parts, fine_tuning, seed)}
        _, teacher = vote_together([logits, bag_logits], parts)
        more = _pseudo_labelled(parts, teacher["unsup"], sure)
        row, bag_logits = vote_of_pairs(f"student-{seed}", more, parts, made_with | {"sure": sure})
        row |= {"reviews": len(more[0])}
        results["self-trained bag of pairs"] = row | test_scores(bag_logits["test"], parts)
        results["self-trained, with pairs"], _ = vote_together([logits, bag_logits], parts)
    return {"results": results, "history": history}


def _record(name, model, parts, fine_tuning, seed, file=None, bf16=False):
    """Fine-tune with all labels: the row, the history, and the logits of validation and test reviews."""
    recipe = fine_tuning[name]
    settings = {key: value for key, value in fine_tuning.items() if not isinstance(value, dict)} | recipe
    file = f"{file or name}-{seed}"
    state = load_part(file, settings)
    if state is None:
        history = _fine_tune(model, *parts["train"], fine_tuning, seed, **recipe, valid=parts["valid"], bf16=bf16)
        logits = {split: _logits(model, parts[split][0], fine_tuning["read"]) for split in ("valid", "test")}
        state = {"history": history, "logits": logits, "model": model.state_dict()}
        save_part(file, settings, state)
    history, logits = state["history"], state["logits"]
    row = {"parameters": number_of_parameters(model), **recipe, "valid_accuracy": history[-1]["valid_accuracy"]}
    row |= {"train_seconds": sum(entry["seconds"] for entry in history)}
    return row | test_scores(logits["test"], parts), history, logits


@experiment("imdb-bert-gpu", "A larger BERT pre-trained on IMDB's text with a GPU, against the same one from scratch.")
def imdb_bert_gpu(
    seed,
    variants=("pre-trained", "from scratch"),
    pretraining=GPU_PRETRAINING,
    fine_tuning=GPU_FINE_TUNING,
    bag=BAG,
    fraction=0.1,
    device="cpu",
    bf16=True,
):
    """`imdb_bert` at a size worth a GPU (`--set device=cuda`): all was set beforehand and nothing else was tried.

    Pre-training reads 164 million words, the 20 million of the reviews again and again, and the learning rate falls to
    0. Reviews are read to their last 512 words. "from scratch" has eight passes over the labelled reviews, the
    pre-trained network three.
    """
    vocab, train, unlabelled = _text(pretraining["vocab_size"])
    bert, pretraining_history = _pretrain(train + unlabelled, pretraining, seed, "gpu-text", device, bf16)
    parts = _parts(seed, fraction, vocab, unlabelled)
    results, history, found = {}, {"pre-training": pretraining_history}, {}
    for name in variants:
        model = _classifier(pretraining, fine_tuning["dropout"], seed, bert if name == "pre-trained" else None)
        recorded = _record(name, model.to(device), parts, fine_tuning, seed, f"gpu-{name}", bf16)
        results[name], history[name], found[name] = recorded
    made_with = {"seed": seed, "vocab_size": len(vocab), **bag}
    row, bag_logits = vote_of_pairs(f"bag-{seed}", parts["train"], parts, made_with)
    results["bag of pairs"] = row | test_scores(bag_logits["test"], parts)
    results["pre-trained, with pairs"], _ = vote_together([found["pre-trained"], bag_logits], parts)
    return {"results": results, "history": history}


def _unlabelled_logits(model, parts, fine_tuning, seed):
    """The fine-tuned model's logits of the unlabelled reviews; `model` takes its weights."""
    settings = {"length": fine_tuning["length"], "read": fine_tuning["read"]} | fine_tuning["pre-trained"]
    logits = load_part(f"unlabelled-{seed}", settings)
    if logits is None:
        path = checkpoint_folder() / f"imdb-bert-pre-trained-{seed}.pt"
        model.load_state_dict(torch.load(path, weights_only=True)["state"]["model"])
        logits = save_part(f"unlabelled-{seed}", settings, _logits(model, parts["unsup"][0], fine_tuning["read"]))
    return logits


def _pseudo_labelled(parts, logits, sure):
    """Training reviews, and the unlabelled ones whose label the teacher gives a probability of at least `sure`."""
    (rows, labels), (unlabelled, _) = parts["train"], parts["unsup"]
    chosen = (logits.abs().sigmoid() >= sure).nonzero()[:, 0].tolist()
    guessed = [int(logits[i] > 0) for i in chosen]
    return rows + [unlabelled[i] for i in chosen], labels + guessed


@experiment("imdb-bert-curves", "Accuracy on IMDB by the number of labelled reviews, pre-trained and from scratch.")
def imdb_bert_curves(
    seed,
    sizes=(100, 400, 1600),
    epochs=(10, 6, 3),
    rates=RATES,
    tested=2000,
    pretraining=PRETRAINING,
    fine_tuning=CURVES,
):
    """One seed's curve: which labelled reviews, the classifier at the start, the order; all from one pre-training.

    A review is its last 128 words, one window; accuracy is on 2,000 of the test reviews, the same for all. Nothing was
    chosen here: the learning rates are those of `imdb_bert`, and there is no validation.
    """
    vocab, train, unlabelled = _text(pretraining["vocab_size"])
    bert, _ = _pretrain(train + unlabelled, pretraining, seed=0)
    labels, (texts, test_labels) = datasets.imdb("train")[1], datasets.imdb("test")
    drawn = torch.randperm(len(texts), generator=_generator(0, 2))[:tested].tolist()
    test, wanted = _rows([tokenize(texts[i]) for i in drawn], vocab), torch.tensor([test_labels[i] for i in drawn])
    order = torch.randperm(len(train), generator=_generator(seed, 3)).tolist()
    results = {}
    for size, passes in zip(sizes, epochs, strict=True):
        known = [train[i] for i in order[:size]], [labels[i] for i in order[:size]]
        for name, rate in rates.items():
            model = _classifier(pretraining, fine_tuning["dropout"], seed, bert if name == "pre-trained" else None)
            _fine_tune(model, *known, fine_tuning, seed, passes, rate)
            accuracy = accuracy_of(_logits(model, test, fine_tuning["length"]), wanted)
            results[f"{name}, {size} labels"] = {"labels": size, "epochs": passes, "accuracy": accuracy}
    return {"results": results}
