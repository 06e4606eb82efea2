"""Recorded runs of chapter 07: the softmax over the width, with and without its scale, and heads that resolve "it".

`attention_scaling` draws random queries and keys; nothing is trained. `coreference_heads` trains small models on
`toy.coreference` and compares where they look with the truth. The notebook uses the same functions on a smaller
scale, so they are public. No number here chooses a model: every model is that of the last step.

Notebook: 07.
"""

import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import toy
from course_lib.attention import MultiHeadAttention, attention_scores, attention_weights
from course_lib.experiments import experiment
from course_lib.tasks import number_of_parameters
from course_lib.text import build_vocab, numericalize, pad_batch
from course_lib.train import evaluating, train_epoch

# --- the scale --------------------------------------------------------------------


@experiment("attention-scaling", "Random queries and keys: scores, weights and slope of the softmax over the width.")
def attention_scaling(seed, widths=(4, 16, 64, 256, 1024), queries=500, keys=32):
    """Two rows of lists, one entry a width; nothing is trained."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [softmax_by_width(width, queries, keys, generator) for width in widths]
    results = {}
    for name in ("with the root", "without"):
        rows = [measured[name] for measured in drawn]
        results[name] = {"width": list(widths), **{key: [row[key] for row in rows] for key in rows[0]}}
    return {"results": results}


def softmax_by_width(width, queries, keys, generator):
    r"""What the softmax makes of random scores, with and without the division by sqrt(K).

    Args:
        width: K. Queries and keys have independent standard normal entries.
        queries: number of queries, each with keys of its own.
        keys: S.
        generator: torch.Generator.

    Returns:
        dict of "with the root" and "without", each a dict of numbers: "cosine_std" and "score_std" (standard
        deviations), "largest" (mean largest weight), "choices" (mean exp of the entropy: as many equal weights would
        be as undecided), "slope" (mean Frobenius norm of the softmax's Jacobian), "flat" (share of queries whose
        Jacobian is below 1/100 of the norm that uniform weights have).

    Example:
        >>> found = softmax_by_width(64, 9, 5, torch.Generator().manual_seed(0))
        >>> found["with the root"]["largest"] < found["without"]["largest"]
        True
    """
    q = torch.randn(queries, 1, width, generator=generator)
    k = torch.randn(queries, keys, width, generator=generator)
    scaled = attention_scores(q, k).squeeze(1)  # (queries, S)
    cosine_std = F.cosine_similarity(q, k, dim=-1).std().item()
    both = {"with the root": scaled, "without": scaled * width**0.5}
    return {name: {"cosine_std": cosine_std, **_of_softmax(scores)} for name, scores in both.items()}


def _of_softmax(scores):
    """Measures of weights (queries, S) and of their Jacobian."""
    w = attention_weights(scores)
    slope = softmax_jacobian(w).flatten(1).norm(dim=1)
    uniform = softmax_jacobian(torch.full_like(w[:1], 1 / w.shape[1])).norm()
    return {
        "score_std": scores.std().item(),
        "largest": w.amax(1).mean().item(),
        "choices": torch.special.entr(w).sum(1).exp().mean().item(),
        "slope": slope.mean().item(),
        "flat": (slope < uniform / 100).float().mean().item(),
    }


def softmax_jacobian(w):
    r"""How weights answer to scores.

    $$ J_{ij} = \frac{\partial w_i}{\partial a_j} = w_i\, (\delta_{ij} - w_j) $$

    Args:
        w: (..., S) weights, a softmax's output.

    Returns:
        (..., S, S).

    Example:
        >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
    """
    return torch.diag_embed(w) - w.unsqueeze(-1) * w.unsqueeze(-2)


# --- coreference: the task --------------------------------------------------------

TICKETS = 16  # more than the longest sentence has words


class Sentences(NamedTuple):
    """Coreference sentences as a batch.

    Args:
        ids: (B, T) word ids.
        mask: (B, T) bool, True = a real word.
        pronoun: (B,) index of "it".
        referent: (B,) index of the noun that it stands for.
        distractor: (B,) index of the other noun.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    pronoun: torch.Tensor
    referent: torch.Tensor
    distractor: torch.Tensor


class CoreferenceTask(NamedTuple):
    """Sentences for training and for testing.

    Args:
        vocab: the vocabulary.
        train: `Sentences`.
        test: `Sentences` whose two nouns never stand together in a training sentence; twins side by side.
        test_sentences: the test sentences as `toy.Sentence`.
    """

    vocab: object
    train: Sentences
    test: Sentences
    test_sentences: list


def coreference_task(sentences=3000, held_out=0.25, seed=0):
    """Draw sentences, and hold out all those with certain pairs of nouns.

    Args:
        sentences: how many, train and test together.
        held_out: share of the pairs of nouns that are kept for testing.
        seed: of the sentences and of the choice.

    Returns:
        CoreferenceTask.

    Example:
        >>> task = coreference_task(200)
        >>> len(task.test_sentences) == len(task.test.ids), task.train.ids.shape[0] + task.test.ids.shape[0]
        (True, 200)
    """
    drawn = toy.coreference(sentences, seed)
    vocab = build_vocab([sentence.tokens for sentence in drawn])
    pairs = sorted({nouns(sentence) for sentence in drawn})
    kept = set(random.Random(seed).sample(pairs, round(held_out * len(pairs))))
    test = [sentence for sentence in drawn if nouns(sentence) in kept]
    train = [sentence for sentence in drawn if nouns(sentence) not in kept]
    return CoreferenceTask(vocab, as_batch(train, vocab), as_batch(test, vocab), test)


def nouns(sentence):
    """The two nouns of a `toy.Sentence`, in alphabetical order."""
    return tuple(sorted((sentence.tokens[sentence.referent], sentence.tokens[sentence.distractor])))


def as_batch(sentences, vocab):
    """A list of `toy.Sentence` as one `Sentences`."""
    ids, mask = pad_batch([numericalize(sentence.tokens, vocab) for sentence in sentences])
    places = [[s.pronoun, s.referent, s.distractor] for s in sentences]
    return Sentences(ids, mask, *torch.tensor(places).unbind(1))


def draw_tickets(B, T, generator):
    """Every word's ticket: numbers below `TICKETS`, none twice in a sentence, drawn anew for every sentence.

    Args:
        B: number of sentences.
        T: number of words, at most `TICKETS`.
        generator: torch.Generator.

    Returns:
        (B, T) int64.

    Example:
        >>> tickets = draw_tickets(2, 5, torch.Generator().manual_seed(0))
        >>> all(len(set(row)) == 5 for row in tickets.tolist())
        True
    """
    return torch.rand(B, TICKETS, generator=generator).argsort(1)[:, :T]


# --- coreference: the model -------------------------------------------------------


class TicketReader(nn.Module):
    r"""Reads, at every word, the ticket of another word: attention twice, the second time over tickets.

    $$ h = x + \text{gather}(x), \qquad y = \text{read}(q = h,\; k = x,\; v = \text{tickets}) $$

    The first layer lets a word gather others. The second one asks with what was gathered, compares with the words,
    and returns tickets. A ticket stands at its own word and nowhere else, and there is no other way for it to come
    to the output: so with one reading head the weights decide which ticket is told. There are no positions.

    Args:
        vocab_size: V.
        width: D.
        gather_heads: heads of the first layer; 0 leaves it out (h = x).
        read_heads: heads of the second layer.
        causal: True hides from each word what comes after it.

    Example:
        >>> model = TicketReader(vocab_size=9, width=8)
        >>> ids, tickets = torch.tensor([[4, 5, 6]]), torch.tensor([[0, 3, 1]])
        >>> model(ids, tickets).shape, [tuple(w.shape) for w in model.weights(ids)]
        (torch.Size([1, 3, 16]), [(1, 2, 3, 3), (1, 1, 3, 3)])

    Notebook: 07.
    """

    def __init__(self, vocab_size, width=32, gather_heads=2, read_heads=1, causal=False):
        super().__init__()
        self.words = nn.Embedding(vocab_size, width)
        self.tickets = nn.Embedding(TICKETS, width)
        self.gather = MultiHeadAttention(width, gather_heads) if gather_heads else None
        self.read = MultiHeadAttention(width, read_heads)
        self.output = nn.Linear(width, TICKETS)
        self.causal = causal
        nn.init.normal_(self.words.weight, std=0.3)

    def context(self, ids, mask=None):
        """Words (B, T, D) before and after gathering."""
        x = self.words(ids)
        return x, x if self.gather is None else x + self.gather(x, mask=mask, causal=self.causal)

    def forward(self, ids, tickets, mask=None):
        """Scores of the ticket that each word tells.

        Args:
            ids: (B, T) words.
            tickets: (B, T) from `draw_tickets`.
            mask: (B, T) bool, True = a real word.

        Returns:
            (B, T, TICKETS) logits.
        """
        x, h = self.context(ids, mask)
        return self.output(self.read(h, x, self.tickets(tickets), mask=mask, causal=self.causal))

    def weights(self, ids, mask=None):
        """Where every head looks: a list of (B, H, T, T), one a layer."""
        x, h = self.context(ids, mask)
        first = [] if self.gather is None else [self.gather.weights(x, mask=mask, causal=self.causal)]
        return [*first, self.read.weights(h, x, mask=mask, causal=self.causal)]


def ticket_loss(model, batch):
    """Cross-entropy and accuracy of the ticket told at "it", as sums; the wanted one is that of its referent."""
    sentences, tickets = batch
    rows = torch.arange(len(tickets))
    logits = model(sentences.ids, tickets, sentences.mask)[rows, sentences.pronoun]  # (B, TICKETS)
    wanted = tickets[rows, sentences.referent]
    right = (logits.argmax(1) == wanted).sum()
    return {"loss": F.cross_entropy(logits, wanted, reduction="sum"), "count": len(wanted), "accuracy": right}


def ticket_batches(sentences, batch_size, generator):
    """Batches (`Sentences`, tickets) in random order; the tickets are new every time."""
    for rows in torch.randperm(len(sentences.ids), generator=generator).split(batch_size):
        part = Sentences(*(field[rows] for field in sentences))
        yield part, draw_tickets(*part.ids.shape, generator)


def train_reader(model, task, epochs=6, learning_rate=1e-2, batch_size=64, seed=0):
    """Train a `TicketReader`.

    Args:
        model: the model, changed.
        task: `CoreferenceTask`.
        epochs: passes over the training sentences.
        learning_rate: the largest of the one-cycle schedule.
        batch_size: B.
        seed: of the order and the tickets.

    Returns:
        list of a dict for each epoch: "loss" in nats, "accuracy", on the training sentences.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    steps = epochs * -(-len(task.train.ids) // batch_size)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps)
    return [
        train_epoch(
            model, ticket_batches(task.train, batch_size, generator), ticket_loss, optimizer,
            scheduler=scheduler, clip_norm=1.0, epoch=epoch,
        )
        for epoch in range(1, epochs + 1)
    ]  # fmt: skip


# --- coreference: the scores ------------------------------------------------------


@torch.no_grad()
def right_tickets(model, sentences, seed=0):
    """For each sentence whether the ticket told at "it" is that of its referent.

    Args:
        model: `TicketReader`.
        sentences: `Sentences`.
        seed: of the tickets; twins get the same.

    Returns:
        (B,) bool.
    """
    B, T = sentences.ids.shape
    tickets = draw_tickets(-(-B // 2), T, torch.Generator().manual_seed(seed)).repeat_interleave(2, 0)[:B]
    rows = torch.arange(B)
    with evaluating(model):
        told = model(sentences.ids, tickets, sentences.mask)[rows, sentences.pronoun].argmax(1)
    return told == tickets[rows, sentences.referent]


@torch.no_grad()
def looks_of_it(model, sentences):
    """The word at which each head of "it" looks most.

    Args:
        model: `TicketReader`.
        sentences: `Sentences`.

    Returns:
        list with a (B, H) tensor of indices for each layer.
    """
    rows = torch.arange(len(sentences.ids))
    return [w[rows, :, sentences.pronoun].argmax(-1) for w in model.weights(sentences.ids, sentences.mask)]


def share_of_best_head(model, task, layer, wanted):
    """In how many test sentences one head of "it" looks most at the wanted word; chosen on training sentences.

    Args:
        model: `TicketReader`.
        task: `CoreferenceTask`.
        layer: index of the layer.
        wanted: function of `Sentences` that gives the index of the wanted word, (B,).

    Returns:
        (share, head).
    """
    on_train = (looks_of_it(model, task.train)[layer] == wanted(task.train)[:, None]).float().mean(0)
    head = on_train.argmax().item()
    on_test = looks_of_it(model, task.test)[layer][:, head] == wanted(task.test)
    return on_test.float().mean().item(), head


def referent_of(sentences):
    """Index of the noun that "it" stands for, (B,)."""
    return sentences.referent


def adjective_of(sentences):
    """Index of the last word, the adjective, (B,)."""
    return sentences.mask.sum(1) - 1


def coreference_scores(model, task):
    """How often the model is right, and how often its heads look where the truth is.

    Args:
        model: `TicketReader`.
        task: `CoreferenceTask`.

    Returns:
        dict of shares of the test sentences: "accuracy"; "both_twins" (of pairs of twins); "head_at_referent" (one
        head of the last layer, chosen on the training sentences); "any_head_at_referent"; "head_at_adjective" (one
        head of the first layer; only if there are two layers); "uniform" (what a look at a random word would give).
    """
    right, last = right_tickets(model, task.test), looks_of_it(model, task.test)[-1]
    scores = {
        "accuracy": right.float().mean().item(),
        "both_twins": right.view(-1, 2).all(1).float().mean().item(),
        "head_at_referent": share_of_best_head(model, task, -1, referent_of)[0],
        "any_head_at_referent": (last == task.test.referent[:, None]).any(1).float().mean().item(),
        "uniform": (1 / task.test.mask.sum(1)).mean().item(),
    }
    if model.gather is not None:
        scores["head_at_adjective"] = share_of_best_head(model, task, 0, adjective_of)[0]
    return scores


READERS = {
    "one reading head": {},
    "two reading heads": {"read_heads": 2},
    "causal mask": {"causal": True},
    "one layer": {"gather_heads": 0},
}


@experiment(
    "coreference-heads", 'Where the heads of "it" look, against the truth, on pairs of nouns never seen together.'
)
def coreference_heads(seed, sentences=3000, width=32, epochs=8, learning_rate=1e-2, batch_size=64):
    """Four models on the same sentences, trained alike.

    The reader; one with two reading heads; one that cannot see what follows "it"; and one whose question is the same
    whatever the sentence.
    """
    task, results, history = coreference_task(sentences, seed=seed), {}, {}
    for name, settings in READERS.items():
        torch.manual_seed(seed)
        model = TicketReader(len(task.vocab), width, **settings)
        history[name] = train_reader(model, task, epochs, learning_rate, batch_size, seed)
        results[name] = {"parameters": number_of_parameters(model), **coreference_scores(model, task)}
    return {"results": results, "history": history}
