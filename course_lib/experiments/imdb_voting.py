"""Bags of word pairs that vote together with a BERT on IMDB's reviews (chapter 12)."""

import torch
import torch.nn.functional as F

from course_lib.bag_of_words import log_count_ratio
from course_lib.experiments.checkpoints import load_part, save_part
from course_lib.experiments.imdb import accuracy_of, test_scores
from course_lib.experiments.imdb_bags import bag_logits, best_strength
from course_lib.experiments.word_pairs import frequent_pairs, pair_codes


def vote_of_pairs(name, train, parts, made_with):
    """A bag of words and pairs learnt from rows and labels: its row but for the test scores, and its logits."""
    state = load_part(name, made_with)
    if state is None:
        V = made_with["vocab_size"]
        codes = frequent_pairs(train[0], V, made_with["least"])
        features = {key: pair_features(parts[key][0], codes, V) for key in ("valid", "test", "unsup")}
        splits = {
            "train": (pair_features(train[0], codes, V), train[1]),
            "valid": (features["valid"], parts["valid"][1]),
        }
        size = V + len(codes)
        ratio = log_count_ratio(*splits["train"], size)
        model, row, _ = best_strength(splits, size, True, ratio, made_with["strengths"], made_with["steps"])
        logits = {key: bag_logits(model, rows).float() for key, rows in features.items()}
        row = {"parameters": size + 1, "valid_accuracy": row["valid_accuracy"], "l2": row["l2"], "step": row["step"]}
        state = save_part(name, made_with, {"row": row, "logits": logits})
    return state["row"], state["logits"]


def pair_features(rows, codes, vocab_size):
    """For each row its words, and `vocab_size` plus the place of each of its frequent pairs, as arrays."""
    features = []
    for row in rows:
        pairs = pair_codes(row[None], vocab_size)[0]
        at = torch.searchsorted(codes, pairs).clamp(max=len(codes) - 1)
        features.append(torch.cat([row, vocab_size + at[codes[at] == pairs]]).numpy())
    return features


def voting_weights(logits, labels):
    """Weights (M + 1,) of M models' logits (N, M) and of a constant: logistic regression on validation reviews."""
    x = torch.cat([logits, torch.ones(len(logits), 1)], 1).double()
    weights = torch.zeros(x.shape[1], dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(x @ weights, labels.double())
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach()


def vote_together(models, parts):
    """The row of models that vote, and their common logits: `models` is a list of dicts of logits by split."""
    stacked = {split: torch.stack([logits[split] for logits in models], 1) for split in models[0]}
    labels = torch.tensor(parts["valid"][1])
    *weights, bias = voting_weights(stacked["valid"], labels)
    logits = {split: x.double() @ torch.stack(weights) + bias for split, x in stacked.items()}
    row = {"valid_accuracy": accuracy_of(logits["valid"], labels), "weights": torch.stack(weights).tolist()}
    return row | test_scores(logits["test"], parts), logits
