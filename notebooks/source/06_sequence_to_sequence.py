# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 180
#     needs: "chapters 02 (BLEU, padding), 03 and 05"
# ---

# %% [markdown]
# # 06 · Sequence to sequence

# %% tags=["setup"]
import math

import torch
from torch.nn import functional as F

from course_lib.checks import ch06

_ = torch.manual_seed(0)


# %% nbgrader={"grade": false, "grade_id": "ex06-1-shifted-loss", "locked": false, "schema_version": 3, "solution": true, "task": false}
def shifted_loss(model, source, mask, target, pad):
    """Mean cross-entropy of a translator on a batch.

    Args:
        model: model(source, mask, inputs) -> logits (B, T, V), for inputs (B, T) of any length T.
        source: (B, S) ids.
        mask: (B, S) bool, True = a real token of the source.
        target: (B, T + 1) ids: <sos>, the words, <eos>, then padding.
        pad: the id of the padding.

    Returns:
        Tensor (): nats per real token that the decoder has to say, <eos> included.
    """
    ### BEGIN SOLUTION
    logits = model(source, mask, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-1-shifted-loss-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch06.shifted_loss(shifted_loss)


# %% nbgrader={"grade": false, "grade_id": "ex06-2-greedy-decode", "locked": false, "schema_version": 3, "solution": true, "task": false}
def greedy_decode(step, state, sos, eos, max_length):
    """Say the most likely token, feed it back, until every row has said <eos>.

    Args:
        step: step(tokens (B,), state) -> (logits (B, V), state).
        state: the decoder's first state, with len(state) = B.
        sos: id of the first input of every row.
        eos: id at which a row ends.
        max_length: a row has at most so many tokens.

    Returns:
        list of B lists of ids, each without <sos>, and without <eos> and what follows it.
    """
    ### BEGIN SOLUTION
    tokens = torch.full((len(state),), sos)
    done, rows = torch.zeros(len(state), dtype=torch.bool), [[] for _ in state]
    for _ in range(max_length):
        logits, state = step(tokens, state)
        tokens = logits.argmax(-1)
        done = done | (tokens == eos)
        for row, token, stop in zip(rows, tokens.tolist(), done.tolist(), strict=True):
            if not stop:
                row.append(token)
        if done.all():
            break
    return rows
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-2-greedy-decode-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch06.greedy_decode(greedy_decode)

# %% nbgrader={"grade": false, "grade_id": "ex06-3-search-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
found = ...  # (greedy, best, score, alpha)
### BEGIN SOLUTION
found = (0.55 * 0.4, 0.45 * 0.9 * 0.8, -1.6 / (11 / 6), math.log(1.6 / 1.2) / math.log(11 / 7))
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex06-3-search-by-hand-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch06.search_by_hand(found)


# %% nbgrader={"grade": false, "grade_id": "ex06-4-beam-search", "locked": false, "schema_version": 3, "solution": true, "task": false}
def beam_search(step, eos, size, max_length, alpha):
    """Search with several hypotheses at once.

    Args:
        step: step(prefix) -> (V,) log-probabilities of the next token; a prefix is a tuple of ids, () at the start.
        eos: id at which a hypothesis is finished and is set aside.
        size: places in the beam. At each step the best extensions of all open hypotheses are kept, as many as there
            are places. A finished hypothesis keeps its place; the open ones share those that are left.
        max_length: a hypothesis has at most so many tokens, <eos> included.
        alpha: strength of the length penalty, ((5 + |Y|) / 6) ** alpha with |Y| tokens, <eos> included.

    Returns:
        tokens: tuple of ids, <eos> included: the finished hypothesis with the best score.
        score: float, its log P divided by the length penalty. If none is finished, both are the best open one's.
    """

    ### BEGIN SOLUTION
    def score(hypothesis):
        tokens, log_p = hypothesis
        return log_p / ((5 + len(tokens)) / 6) ** alpha

    unfinished, finished = [((), 0.0)], []
    for _ in range(max_length):
        candidates = [
            ((*tokens, i), log_p + value)
            for tokens, log_p in unfinished
            for i, value in enumerate(step(tokens).tolist())
        ]
        kept = sorted(candidates, key=lambda candidate: -candidate[1])[: size - len(finished)]
        finished += [candidate for candidate in kept if candidate[0][-1] == eos]
        unfinished = [candidate for candidate in kept if candidate[0][-1] != eos]
        if not unfinished:
            break
    best = max(finished or unfinished, key=score)
    return best[0], score(best)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-4-beam-search-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch06.beam_search(beam_search)


# %% nbgrader={"grade": false, "grade_id": "ex06-5-additive-weights", "locked": false, "schema_version": 3, "solution": true, "task": false}
def additive_weights(query, keys, W_q, W_k, v, mask):
    """Weights of additive attention.

    Args:
        query: (B, Q), one state of the decoder in each row.
        keys: (B, S, E), the states of the encoder.
        W_q: (A, Q).
        W_k: (A, E).
        v: (A,).
        mask: (B, S) bool, True = may be attended to; every row has a True.

    Returns:
        (B, S), the softmax over s of v . tanh(W_q q + W_k k_s); 0 where the mask is False.
    """
    ### BEGIN SOLUTION
    scores = torch.tanh((query @ W_q.T).unsqueeze(1) + keys @ W_k.T) @ v
    return scores.masked_fill(~mask, -math.inf).softmax(dim=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-5-additive-weights-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch06.additive_weights(additive_weights)
