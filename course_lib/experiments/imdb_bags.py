"""Recorded runs of chapter 02: bags of words on IMDB's reviews, and what padding costs there.

`imdb_bow` is logistic regression on words and pairs of words, `imdb_embeddings` the mean of
learned vectors: the numbers that the sequence models of later chapters have to beat. `imdb_ends`
reads one piece of each review. `imdb_padding` counts. The official test reviews decide nothing:
everything is chosen on a tenth of the training reviews, another tenth for each seed.
"""

import torch

from course_lib.bag_of_words import (
    AveragedEmbeddings,
    BagOfWords,
    add_bigrams,
    fit_bag_of_words,
    flatten_rows,
    log_count_ratio,
)
from course_lib.experiments import experiment
from course_lib.experiments.imdb import accuracy_of, test_scores, tokenized_reviews
from course_lib.text import batches, bucket_batches, build_vocab, length_mask, numericalize, tokenize
from course_lib.train import classification_loss, fit

# The same bag of words, opposite meanings.
PRAISE, BLAME = "not terrible, it's great", "not great, it's terrible"


@experiment("imdb-bow", "Logistic regression on IMDB: words and word pairs, presence and counts.")
def imdb_bow(seed, min_freq=2, strengths=(1e-5, 1e-4, 1e-3), steps=30, least_shown=100, fraction=0.1):
    """The strength of the L2 penalty and the step with the best validation accuracy; that model's test accuracy."""
    reviews = tokenized_reviews(seed, fraction)
    results, history = {"majority": _majority(reviews)}, {}
    for features, cut in (("unigrams", list), ("unigrams + bigrams", add_bigrams)):
        vocab = build_vocab(map(cut, reviews["train"][0]), min_freq=min_freq)
        splits = {
            split: ([numericalize(cut(tokens), vocab) for tokens in token_lists], labels)
            for split, (token_lists, labels) in ((split, reviews[split]) for split in ("train", "valid", "test"))
        }
        ratio = log_count_ratio(*splits["train"], len(vocab))
        kinds = {"binary": (True, None), "scaled": (True, ratio)}
        if features == "unigrams":
            kinds["counts"] = (False, None)
        for kind, (binary, scale) in kinds.items():
            name = f"{features}, {kind}"
            model, row, history[name] = best_strength(splits, len(vocab), binary, scale, strengths, steps)
            logits = bag_logits(model, splits["test"][0])
            opposite = [numericalize(cut(tokenize(string)), vocab) for string in (PRAISE, BLAME)]
            results[name] = row | test_scores(logits, reviews) | _contrast(bag_logits(model, opposite))
            if name == "unigrams, binary":
                results["words"] = _telling_words(model, vocab, least_shown)
    return {"results": results, "history": history}


def best_strength(splits, vocab_size, binary, scale, strengths, steps):
    """Fit once a strength; the model with the best validation accuracy at any step, its row and its history."""
    ids, starts = flatten_rows(splits["valid"][0], binary)
    labels = torch.tensor(splits["valid"][1])
    model, best, histories = BagOfWords(vocab_size, binary).double(), None, []
    for l2 in strengths:
        fitted = BagOfWords(vocab_size, binary).double()

        @torch.no_grad()
        def log(step, fitted=fitted, l2=l2):
            nonlocal best
            accuracy = accuracy_of(fitted.score(ids, starts), labels)
            if best is None or accuracy > best["valid_accuracy"]:
                best = {"valid_accuracy": accuracy, "l2": l2, "step": step}
                model.load_state_dict(fitted.state_dict())
            return {"valid_accuracy": accuracy}

        histories.append(fit_bag_of_words(fitted, *splits["train"], l2, scale, steps, log=log))
    tried = {
        "l2_tried": list(strengths),
        "valid_accuracy_by_l2": [max(entry["valid_accuracy"] for entry in history) for history in histories],
    }
    return model, {"features": vocab_size, **best, **tried}, histories[strengths.index(best["l2"])]


@torch.no_grad()
def bag_logits(model, rows):
    """The logits of all rows, in their order."""
    return model.score(*flatten_rows(rows, model.binary))


def _telling_words(model, vocab, least, top=12):
    """Of the words seen at least so often in training, those with the largest and the smallest weights."""
    order = [i for i in model.weight.argsort().tolist() if vocab.freqs[vocab.itos[i]] >= least]
    most = {"positive": order[::-1][:top], "negative": order[:top]}
    words = {f"{side}_words": [vocab.itos[i] for i in ids] for side, ids in most.items()}
    return words | {f"{side}_weights": model.weight[ids].tolist() for side, ids in most.items()}


@experiment("imdb-ends", "Where the verdict stands: a bag of the first, middle or last words of IMDB's reviews.")
def imdb_ends(seed, kept=50, min_freq=2, strengths=(1e-5, 1e-4, 1e-3), steps=30, fraction=0.1):
    """Bags of `kept` tokens of each review with at least 3 `kept` of them, so that the three pieces never overlap."""
    reviews = tokenized_reviews(seed, fraction)
    results, history = {}, {}
    for place in ("first", "middle", "last"):
        pieces = {}
        for split in ("train", "valid", "test"):
            long = [(t, label) for t, label in zip(*reviews[split], strict=True) if len(t) >= 3 * kept]
            starts = {"first": lambda n: 0, "middle": lambda n: (n - kept) // 2, "last": lambda n: n - kept}
            pieces[split] = [t[starts[place](len(t)) :][:kept] for t, _ in long], [label for _, label in long]
        vocab = build_vocab(pieces["train"][0], min_freq=min_freq)
        splits = {
            split: ([numericalize(tokens, vocab) for tokens in rows], labels)
            for split, (rows, labels) in pieces.items()
        }
        model, row, history[place] = best_strength(splits, len(vocab), True, None, strengths, steps)
        logits, labels = bag_logits(model, splits["test"][0]), torch.tensor(splits["test"][1])
        counts = {f"{split}_reviews": len(labels) for split, (_, labels) in splits.items()}
        results[place] = row | {"accuracy": accuracy_of(logits, labels), **counts}
    return {"results": results, "history": history}


@experiment("imdb-embeddings", "The mean of learned word vectors on IMDB.")
def imdb_embeddings(
    seed, max_size=25_000, width=64, dropout=0.5, epochs=8, batch_size=64, learning_rate=2e-3, fraction=0.1
):
    """The epoch with the best validation accuracy; that model's test accuracy."""
    reviews = tokenized_reviews(seed, fraction)
    vocab = build_vocab(reviews["train"][0], max_size=max_size)
    splits = {
        split: ([torch.tensor(numericalize(tokens, vocab)) for tokens in reviews[split][0]], reviews[split][1])
        for split in ("train", "valid", "test")
    }
    model = AveragedEmbeddings(len(vocab), width, dropout=dropout)

    def train_batches(epoch):
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        return batches(*splits["train"], batch_size, generator=generator)

    def in_order(split):
        return batches(*splits[split], batch_size, shuffle=False)

    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=0)
    history = fit(
        model,
        train_batches,
        classification_loss,
        optimizer,
        epochs=epochs,
        valid_batches=lambda: in_order("valid"),
        monitor="accuracy",
    )
    best = max(history, key=lambda entry: entry["valid_accuracy"])
    row = {
        "features": len(vocab),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "best_epoch": best["epoch"],
        "valid_accuracy": best["valid_accuracy"],
    }
    opposite = [torch.tensor(numericalize(tokenize(string), vocab)) for string in (PRAISE, BLAME)]
    row |= test_scores(_embedding_logits(model, splits["test"][0]), reviews)
    row |= _contrast(_embedding_logits(model, opposite))
    return {"results": {"averaged embeddings": row}, "history": {"averaged embeddings": history}}


@torch.no_grad()
def _embedding_logits(model, rows):
    """How far the logit of "positive" is above that of "negative", for all rows in their order."""
    model.eval()
    logits = torch.empty(len(rows))
    for ids, mask, where in batches(rows, range(len(rows)), 256, shuffle=False):
        logits[where] = model(ids, mask).diff(dim=1)[:, 0]
    return logits


@experiment("imdb-padding", "How long IMDB's reviews are, and the share of padding in batches made in five ways.")
def imdb_padding(seed, batch_size=64, lengths_kept=(200, 400), bin_width=50, fraction=0.1):
    """The training reviews of a seed: their lengths in tokens, padding as a fraction of all entries, tokens cut off."""
    token_lists, _ = tokenized_reviews(seed, fraction)["train"]
    lengths = torch.tensor([len(tokens) for tokens in token_lists])
    n, longest = len(lengths), lengths.max().item()
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randperm(n, generator=generator).split(batch_size)
    bucketed = [torch.tensor(batch) for batch in bucket_batches(lengths, batch_size, generator)]
    results = {"lengths": _length_statistics(lengths, lengths_kept, bin_width)}
    for name, order, kept, fixed in (
        ("fixed: the longest review", plain, longest, True),
        *((f"fixed: {kept} tokens", plain, kept, True) for kept in lengths_kept),
        ("per batch, random", plain, longest, False),
        ("per batch, bucketed", bucketed, longest, False),
        *((f"bucketed, at most {kept} tokens", bucketed, kept, False) for kept in lengths_kept),
    ):
        results[name] = _padding(lengths, order, kept, fixed)
    return {"results": results}


def _length_statistics(lengths, thresholds, bin_width):
    """Where the lengths lie, and a histogram whose last bin holds everything beyond 1,000 tokens."""
    edges = list(range(0, 1001, bin_width))
    quantiles = lengths.double().quantile(torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)).tolist()
    return {
        "reviews": len(lengths),
        "mean": lengths.double().mean().item(),
        **dict(zip(("median", "p90", "p99"), quantiles, strict=True)),
        "shortest": lengths.min().item(),
        "longest": lengths.max().item(),
        **{f"share_over_{threshold}": (lengths > threshold).double().mean().item() for threshold in thresholds},
        "histogram_edges": edges,
        "histogram_counts": torch.bincount(lengths.clamp(max=1000) // bin_width, minlength=len(edges)).tolist(),
    }


def _padding(lengths, order, kept, fixed):
    """Padding over all batches if each review keeps at most `kept` tokens, and the fraction of tokens lost by that."""
    masks = [length_mask(lengths[batch].clamp(max=kept), kept if fixed else None) for batch in order]
    entries, real = sum(mask.numel() for mask in masks), sum(mask.sum().item() for mask in masks)
    return {
        "padding": 1 - real / entries,
        "tokens_lost": 1 - real / lengths.sum().item(),
        "entries_per_review": entries / len(lengths),
    }


def _majority(reviews):
    """The test accuracy of always saying what is more frequent in training."""
    answer = 2 * sum(reviews["train"][1]) > len(reviews["train"][1])
    return {"accuracy": sum(label == answer for label in reviews["test"][1]) / len(reviews["test"][1])}


def _contrast(logits):
    """What a model says about the two opposite texts: above 0 is positive."""
    return dict(zip(("logit_praise", "logit_blame"), logits.tolist(), strict=True))
