"""Recorded runs of chapter 12 on a toy language: pre-training against none, fine-tuning against frozen, and probes.

`review_text` writes all reviews of one judgement that the grammar of `synthetic.reviews` knows; most are read without
their labels. `pretrain` fills in blanks, `finetune` learns the verdict from few labels, `probe` asks what a vector
knows. The notebook uses the same functions, so they are public. Every model is that of the last step; only
`bert_toy_steps` chooses anything, a rate, on reviews of its own.
"""

import copy
import functools
import itertools
import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tqdm import tqdm

from course_lib import optim
from course_lib.bert import (
    BERT,
    BERTConfig,
    BERTForPreTraining,
    BERTForSequenceClassification,
    mask_tokens,
    masked_lm_loss,
)
from course_lib.datasets import synthetic
from course_lib.experiments import experiment
from course_lib.text import batches, build_vocab, numericalize, pad_batch
from course_lib.train import classification_loss, evaluate, train_epoch
from course_lib.utils import eval_mode

SPECIALS = ("<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]")
CLS, SEP, MASK = 2, 3, 4
FIRST = len(SPECIALS)  # id of the first word


class Review(NamedTuple):
    """A review of one judgement, and what the grammar knows of it.

    Args:
        words: list of str.
        label: 1 = positive, 0 = negative.
        thing: what is judged, an index into `synthetic.THINGS`.
        held: place in `words` of the adjective that the reviewer holds.
        denied: place of the one that the reviewer denies.
    """

    words: list
    label: int
    thing: int
    held: int
    denied: int


def review_text(seed=0):
    """All reviews of one judgement, in random order: 8 things, 8 forms, 6 good and 6 bad adjectives, 2 verdicts.

    >>> reviews = review_text()
    >>> len(reviews), sum(review.label for review in reviews)
    (4608, 2304)
    """
    found = []
    for thing, form, good, bad in itertools.product(
        range(len(synthetic.THINGS)), synthetic.JUDGEMENTS, synthetic.GOOD, synthetic.BAD
    ):
        for label, yes, no in ((1, good, bad), (0, bad, good)):
            words = f"{form.format(thing=synthetic.THINGS[thing], yes=yes, no=no)} .".split()
            found.append(Review(words, label, thing, words.index(yes), words.index(no)))
    random.Random(f"reviews of one judgement {seed}").shuffle(found)
    return found


class Task(NamedTuple):
    """The reviews, numbered and cut in three.

    Args:
        vocab: of all reviews, with `SPECIALS` first.
        unlabelled: rows of ids, `[CLS] ... [SEP]`, to pre-train on.
        labelled: list of (row, label) to fine-tune on, none of them among the unlabelled.
        test: the same of the others.
        reviews: the `Review`s of `test`.
    """

    vocab: object
    unlabelled: list
    labelled: list
    test: list
    reviews: list


def review_task(seed=0, labelled=600, test=400):
    """Cut the reviews of one judgement in three.

    Returns:
        `Task`; what is neither labelled nor test is unlabelled.

    >>> task = review_task()
    >>> len(task.unlabelled), len(task.labelled), len(task.test)
    (3608, 600, 400)
    """
    reviews = review_text(seed)
    vocab = build_vocab([review.words for review in reviews], specials=SPECIALS)
    rows = [[CLS, *numericalize(review.words, vocab), SEP] for review in reviews]
    pairs = list(zip(rows, (review.label for review in reviews), strict=True))
    held_out = labelled + test
    return Task(vocab, rows[held_out:], pairs[test:held_out], pairs[:test], reviews[:test])


def small_bert(task, width=64, heads=4, layers=2):
    """An untrained BERT of two layers for the toy language, without dropout."""
    sizes = {"d_model": width, "num_heads": heads, "num_layers": layers, "dim_feedforward": 4 * width}
    return BERTForPreTraining(BERT(BERTConfig(len(task.vocab), max_len=32, dropout=0.0, **sizes)))


# --- pre-training ---------------------------------------------------------------


def masked_batches(rows, vocab_size, batch_size, generator):
    """One pass over the rows, each batch masked anew.

    Returns:
        iterator of (inputs, real, targets), as `masked_lm_loss` takes them.
    """
    for ids, real, _ in batches(rows, [0] * len(rows), batch_size, generator=generator):
        inputs, targets = mask_tokens(ids, real & (ids >= FIRST), vocab_size, MASK, generator, first_regular_id=FIRST)
        yield inputs, real, targets


def pretrain(model, task, steps=800, *, batch_size=32, learning_rate=3e-3, seed=0, every=50):
    """Learn to fill in blanks, with warm-up and a linear decay.

    Args:
        steps: 0 leaves the model as it is.
        every: steps between two entries of the history.

    Returns:
        list with a dict for every so many steps: "step", and the means of "loss" in nats a masked token, "accuracy".
    """
    if steps == 0:
        return []
    generator = torch.Generator().manual_seed(seed)
    optimizer, scheduler = scheduled_adamw(model, learning_rate, steps)
    passes = (masked_batches(task.unlabelled, len(task.vocab), batch_size, generator) for _ in itertools.count())
    stream = itertools.islice(itertools.chain.from_iterable(passes), steps)
    stream, history = iter(tqdm(stream, desc="steps", total=steps, leave=False)), []
    while part := list(itertools.islice(stream, every)):
        means = train_epoch(model, part, masked_lm_loss, optimizer, scheduler=scheduler, clip_norm=1.0)
        history.append({"step": min(steps, every * (len(history) + 1))} | means)
    return history


def masked_scores(model, task, draws=2, seed=12345):
    """Loss and accuracy on blanks in the test reviews: the same blanks for every model.

    Args:
        draws: how often each review is masked.

    Returns:
        dict: "loss" in nats per masked token, "accuracy".
    """
    generator = torch.Generator().manual_seed(seed)
    rows = [row for row, _ in task.test]
    loader = [b for _ in range(draws) for b in masked_batches(rows, len(task.vocab), 100, generator)]
    return evaluate(model, loader, masked_lm_loss)


# --- the verdict ----------------------------------------------------------------


def finetune(bert, pairs, steps=150, *, batch_size=16, learning_rate=1e-3, seed=0):
    """A classifier on top of a BERT, both trained on labelled reviews. The BERT given stays as it was.

    Args:
        seed: of the classifier's start and of the batches.

    Returns:
        `BERTForSequenceClassification`, which reads the mean over the tokens.
    """
    torch.manual_seed(seed)
    model = BERTForSequenceClassification(copy.deepcopy(bert), num_classes=2, pool="mean")
    optimizer, scheduler = scheduled_adamw(model, learning_rate, steps)
    generator = torch.Generator().manual_seed(seed)
    rows, labels = zip(*pairs, strict=True)
    passes = (batches(rows, labels, batch_size, generator=generator) for _ in itertools.count())
    stream = itertools.islice(itertools.chain.from_iterable(passes), steps)
    train_epoch(model, stream, classification_loss, optimizer, scheduler=scheduler, clip_norm=1.0)
    return model


def accuracy(model, pairs):
    """Fraction of reviews judged right.

    Returns:
        float from 0 to 1.
    """
    return evaluate(model, list(batches(*zip(*pairs, strict=True), 100, shuffle=False)), classification_loss)[
        "accuracy"
    ]


def features(bert, rows):
    """The mean over each row's vectors of the last layer: the features of a frozen network.

    Returns:
        (N, D).
    """
    ids, real = pad_batch(rows)
    with torch.no_grad(), eval_mode(bert):
        return bert(ids, real).sum(1) / real.sum(1, keepdim=True)


def frozen_accuracy(bert, train, test):
    """Accuracy of a linear classifier on a frozen BERT.

    Returns:
        float from 0 to 1.
    """
    (rows, labels), (test_rows, test_labels) = (zip(*pairs, strict=True) for pairs in (train, test))
    return probe(
        features(bert, rows), torch.tensor(labels), features(bert, test_rows), torch.tensor(test_labels)
    )["accuracy"]  # fmt: skip


# --- probes ---------------------------------------------------------------------


def probe(x, labels, test_x, test_labels, decay=1e-3):
    """Fit a linear classifier to vectors; test it on others.

    Args:
        decay: weight of the squared weights in the loss.

    Returns:
        dict: "accuracy" on the test vectors, "train_accuracy".

    >>> x, labels = torch.eye(4).repeat(5, 1), torch.tensor([0, 1, 1, 2]).repeat(5)
    >>> probe(x, labels, x[:4], labels[:4])["accuracy"]
    1.0
    """
    mean, std = x.mean(0), x.std(0) + 1e-6
    x, test_x = (x - mean) / std, (test_x - mean) / std
    weight = torch.zeros(x.shape[1], int(labels.max()) + 1, requires_grad=True)
    bias = torch.zeros(weight.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(x @ weight + bias, labels) + decay * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        right = [((v @ weight + bias).argmax(1) == y).float().mean() for v, y in ((test_x, test_labels), (x, labels))]
    return {"accuracy": right[0].item(), "train_accuracy": right[1].item()}


QUESTIONS = ("role", "thing")


def adjectives(bert, task):
    """The vectors at the adjectives of the test reviews, and what the grammar knows of them.

    Returns:
        layers: list of N + 1 tensors (2 R, D), embeddings first, of the R test reviews' adjectives: two a review, the
            held one first.
        answers: dict: "role" (2 R,), 1 = the reviewer holds it, 0 = denies it; "thing" (2 R,), what is judged.
    """
    ids, real = pad_batch([row for row, _ in task.test])
    with torch.no_grad(), eval_mode(bert):
        hidden = bert.hidden(ids, real)
    rows = torch.arange(len(ids))[:, None]
    places = 1 + torch.tensor([[review.held, review.denied] for review in task.reviews])  # 1: after [CLS]
    answers = {
        "role": torch.tensor([1, 0]).repeat(len(ids)),
        "thing": torch.tensor([review.thing for review in task.reviews]).repeat_interleave(2),
    }
    return [x[rows, places].flatten(0, 1) for x in hidden], answers


def probe_layers(bert, task, shuffled=False, seed=0):
    """What a linear probe reads off each layer's vectors at the adjectives; fitted on half of the reviews.

    Args:
        shuffled: True asks for answers in random order: the control task, which no vector knows.

    Returns:
        dict: for each of `QUESTIONS` the list of accuracies by layer, embeddings first, on the other half.
    """
    layers, answers = adjectives(bert, task)
    half = len(layers[0]) // 4 * 2  # both adjectives of a review on one side
    order = torch.randperm(2 * len(task.test), generator=torch.Generator().manual_seed(seed))
    found = {}
    for question in QUESTIONS:
        y = answers[question][order] if shuffled else answers[question]
        found[question] = [probe(x[:half], y[:half], x[half:], y[half:])["accuracy"] for x in layers]
    return found


# --- the recorded run -----------------------------------------------------------

LABELS = (20, 50, 100, 200)


@experiment("bert-toy", "Toy reviews: pre-trained, from scratch and frozen, by number of labels; probes by layer.")
def bert_toy(seed, steps=800, labels=LABELS, finetune_steps=150, width=64, labelled=600, test=400):
    """Pre-train a small BERT, then learn the verdict from few labels in three ways; probe it and an untrained one."""
    task = review_task(seed, labelled, test)
    torch.manual_seed(seed)
    untrained = small_bert(task, width)
    model = copy.deepcopy(untrained)
    history = pretrain(model, task, steps, seed=seed)
    results = {"pre-training": masked_scores(model, task)}
    for n in labels:
        pairs = task.labelled[:n]
        for name, start in (("pre-trained", model), ("from scratch", untrained)):
            tuned = finetune(start.bert, pairs, finetune_steps, seed=seed)
            results[f"{name}, {n} labels"] = {"accuracy": accuracy(tuned, task.test)}
        results[f"frozen, {n} labels"] = {"accuracy": frozen_accuracy(model.bert, pairs, task.test)}
    for name, start in (("pre-trained", model), ("untrained", untrained)):
        results[f"probe, {name}"] = probe_layers(start.bert, task)
    results["probe, shuffled"] = probe_layers(model.bert, task, shuffled=True, seed=seed)
    return {"results": results, "history": {"pre-training": history}}


@experiment("bert-toy-steps", "Toy reviews from scratch: few steps and many, each at the best of three rates.")
def bert_toy_steps(seed, labels=LABELS, steps=(150, 950), rates=(1e-3, 3e-3, 6e-3), width=64, labelled=600, test=400):
    """The network of `bert_toy` without pre-training, given time and a choice of rates.

    950 steps are as many as pre-training and fine-tuning take together. The rate is the one that does best on those of
    the labelled reviews that no network here learns from; the test reviews choose nothing.
    """
    task = review_task(seed, labelled, test)
    torch.manual_seed(seed)
    untrained, held_out, results = small_bert(task, width), task.labelled[max(labels) :], {}
    for n, many in itertools.product(labels, steps):
        tried = {}
        for rate in rates:
            tuned = finetune(untrained.bert, task.labelled[:n], many, learning_rate=rate, seed=seed)
            tried[rate] = {"valid_accuracy": accuracy(tuned, held_out), "accuracy": accuracy(tuned, task.test)}
        rate = max(tried, key=lambda r: tried[r]["valid_accuracy"])
        by_rate = {name: [row[name] for row in tried.values()] for name in ("valid_accuracy", "accuracy")}
        results[f"from scratch, {many} steps, {n} labels"] = tried[rate] | {"rate": rate, "by rate": by_rate}
    return {"results": results}


def scheduled_adamw(model, learning_rate, steps):
    """AdamW, and its schedule: a tenth of the steps to warm up, then a line down to 0."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=0.01)
    schedule = functools.partial(optim.linear_schedule, warmup=max(1, steps // 10), total=steps)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
