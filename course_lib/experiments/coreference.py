"""Heads that resolve "it": small models are trained, and where they look is compared with the truth (chapter 07).

The sentences are those of `synthetic.coreference`. Nothing is chosen: every model is that of the last step.
"""

import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib.attention import MultiHeadAttention, record_attention
from course_lib.datasets import synthetic
from course_lib.experiments import experiment
from course_lib.functional import padding_mask
from course_lib.text import build_vocab, numericalize, pad_batch
from course_lib.train import train_epoch
from course_lib.utils import eval_mode, number_of_parameters

# --- the task --------------------------------------------------------

TICKETS = 16  # more than the longest sentence has words


class Sentences(NamedTuple):
    """Coreference sentences as a batch.

    Args:
        ids: (B, T) word ids.
        real: (B, T) bool, True = a real word.
        pronoun: (B,) index of "it".
        referent: (B,) index of the noun that it stands for.
        distractor: (B,) index of the other noun.
    """

    ids: torch.Tensor
    real: torch.Tensor
    pronoun: torch.Tensor
    referent: torch.Tensor
    distractor: torch.Tensor


class CoreferenceTask(NamedTuple):
    """Sentences for training and for testing.

    Args:
        vocab: the vocabulary.
        train: `Sentences`.
        test: `Sentences` whose two nouns never stand together in a training sentence; twins side by side.
        test_sentences: the test sentences as `synthetic.Sentence`.
    """

    vocab: object
    train: Sentences
    test: Sentences
    test_sentences: list


def coreference_task(sentences=3000, held_out=0.25, seed=0):
    """Draw sentences, and hold out all those with certain pairs of nouns.

    Args:
        held_out: fraction of the pairs of nouns that are kept for testing.

    >>> task = coreference_task(200)
    >>> len(task.test_sentences) == len(task.test.ids), task.train.ids.shape[0] + task.test.ids.shape[0]
    (True, 200)
    """
    drawn = synthetic.coreference(sentences, seed)
    vocab = build_vocab([sentence.tokens for sentence in drawn])
    pairs = sorted({nouns(sentence) for sentence in drawn})
    kept = set(random.Random(seed).sample(pairs, round(held_out * len(pairs))))
    test = [sentence for sentence in drawn if nouns(sentence) in kept]
    train = [sentence for sentence in drawn if nouns(sentence) not in kept]
    return CoreferenceTask(vocab, as_batch(train, vocab), as_batch(test, vocab), test)


def nouns(sentence):
    """The two nouns of a `synthetic.Sentence`, in alphabetical order."""
    return tuple(sorted((sentence.tokens[sentence.referent], sentence.tokens[sentence.distractor])))


def as_batch(sentences, vocab):
    """A list of `synthetic.Sentence` as one `Sentences`."""
    ids, real = pad_batch([numericalize(sentence.tokens, vocab) for sentence in sentences])
    places = [[s.pronoun, s.referent, s.distractor] for s in sentences]
    return Sentences(ids, real, *torch.tensor(places).unbind(1))


def draw_tickets(B, T, generator):
    """Every word's ticket: numbers below `TICKETS`, none twice in a sentence, drawn anew for every sentence.

    Returns:
        (B, T) int64.

    >>> tickets = draw_tickets(2, 5, torch.Generator().manual_seed(0))
    >>> all(len(set(row)) == 5 for row in tickets.tolist())
    True
    """
    return torch.rand(B, TICKETS, generator=generator).argsort(1)[:, :T]


# --- the model -------------------------------------------------------


class TicketReader(nn.Module):
    r"""Reads, at every word, the ticket of another word: attention twice, the second time over tickets.

    $$ h = x + \text{gather}(x), \qquad y = \text{read}(q = h,\; k = x,\; v = \text{tickets}) $$

    The first layer lets a word gather others. The second one asks with what was gathered, compares with the words,
    and returns tickets. A ticket stands at its own word and nowhere else, and there is no other way for it to come
    to the output: so with one reading head the weights decide which ticket is told. There are no positions.

    Args:
        gather_heads: heads of the first layer; 0 leaves it out (h = x).
        causal: True hides from each word what comes after it.

    >>> model = TicketReader(vocab_size=9, width=8)
    >>> ids, tickets = torch.tensor([[4, 5, 6]]), torch.tensor([[0, 3, 1]])
    >>> model(ids, tickets).shape
    torch.Size([1, 3, 16])
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
        """Words (B, T, D) before and after gathering; the mask broadcasts to (B, H, T, T)."""
        x = self.words(ids)
        return x, x if self.gather is None else x + self.gather(x, mask=mask, causal=self.causal)

    def forward(self, ids, tickets, real=None):
        """Scores of the ticket that each word tells.

        Args:
            ids: (B, T) words.
            tickets: (B, T) from `draw_tickets`.
            real: (B, T) bool, True = a real word; None: all.

        Returns:
            (B, T, TICKETS) logits.
        """
        mask = padding_mask(real)
        x, h = self.context(ids, mask)
        return self.output(self.read(h, x, self.tickets(tickets), mask=mask, causal=self.causal))


def ticket_loss(model, batch):
    """Cross-entropy and accuracy of the ticket told at "it", as sums; the wanted one is that of its referent."""
    sentences, tickets = batch
    rows = torch.arange(len(tickets))
    logits = model(sentences.ids, tickets, sentences.real)[rows, sentences.pronoun]  # (B, TICKETS)
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
            scheduler=scheduler, clip_norm=1.0,
        )
        for epoch in tqdm(range(1, epochs + 1), desc="epochs", leave=False)
    ]  # fmt: skip


# --- the scores ------------------------------------------------------


@torch.no_grad()
def right_tickets(model, sentences, seed=0):
    """For each sentence whether the ticket told at "it" is that of its referent.

    Args:
        seed: of the tickets; twins get the same.

    Returns:
        (B,) bool.
    """
    B, T = sentences.ids.shape
    tickets = draw_tickets(-(-B // 2), T, torch.Generator().manual_seed(seed)).repeat_interleave(2, 0)[:B]
    rows = torch.arange(B)
    with eval_mode(model):
        told = model(sentences.ids, tickets, sentences.real)[rows, sentences.pronoun].argmax(1)
    return told == tickets[rows, sentences.referent]


@torch.no_grad()
def right_without(model, sentences, hidden, seed=0):
    """The same if the first layer cannot look at one word of each sentence, `hidden` (B,); nothing else changes."""
    B, T = sentences.ids.shape
    tickets = draw_tickets(-(-B // 2), T, torch.Generator().manual_seed(seed)).repeat_interleave(2, 0)[:B]
    rows, visible = torch.arange(B), sentences.real.clone()
    visible[rows, hidden] = False  # for `gather` alone
    with eval_mode(model):
        x, h = model.context(sentences.ids, padding_mask(visible))
        y = model.read(h, x, model.tickets(tickets), mask=padding_mask(sentences.real))
        told = model.output(y)[rows, sentences.pronoun].argmax(1)
    return told == tickets[rows, sentences.referent]


@torch.no_grad()
def right_exchanged(model, sentences, seed=0):
    """The same if the first layer reads the twin in place of each sentence: there the adjective is the twin's.

    What the second layer compares with, and the tickets, stay those of the sentence. Twins stand side by side.
    """
    B, T = sentences.ids.shape
    tickets = draw_tickets(-(-B // 2), T, torch.Generator().manual_seed(seed)).repeat_interleave(2, 0)[:B]
    rows, mask = torch.arange(B), padding_mask(sentences.real)
    twins = rows.view(-1, 2).flip(1).flatten()
    with eval_mode(model):
        x, h = model.context(sentences.ids, mask)
        y = model.read(h[twins], x, model.tickets(tickets), mask=mask)
        told = model.output(y)[rows, sentences.pronoun].argmax(1)
    return told == tickets[rows, sentences.referent]


def maps(model, sentences):
    """Where every head looks: a list of (B, H, T, T), one a layer; the tickets do not matter.

    >>> task = coreference_task(20)
    >>> [w.shape[1] for w in maps(TicketReader(len(task.vocab)), task.train)]  # heads
    [2, 1]
    """
    with torch.no_grad(), record_attention(model) as found:
        model(sentences.ids, torch.zeros_like(sentences.ids), sentences.real)
    return list(found.values())


def looks_of_it(model, sentences):
    """The word at which each head of "it" looks most.

    Returns:
        list with a (B, H) tensor of indices for each layer.
    """
    rows = torch.arange(len(sentences.ids))
    return [w[rows, :, sentences.pronoun].argmax(-1) for w in maps(model, sentences)]


def share_of_best_head(model, task, layer, wanted):
    """In how many test sentences one head of "it" looks most at the wanted word; chosen on training sentences.

    Args:
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
    return sentences.real.sum(1) - 1


def coreference_scores(model, task):
    """How often the model is right, and how often its heads look where the truth is.

    Returns:
        dict of fractions of the test sentences: "accuracy"; "both_twins" (of pairs of twins); "head_at_referent" (one
        head of the last layer, chosen on the training sentences); "any_head_at_referent"; "head_at_adjective" (one
        head of the first layer; only if there are two layers); "uniform" (what a look at a random word would give).
    """
    right, last = right_tickets(model, task.test), looks_of_it(model, task.test)[-1]
    scores = {
        "accuracy": right.float().mean().item(),
        "both_twins": right.view(-1, 2).all(1).float().mean().item(),
        "head_at_referent": share_of_best_head(model, task, -1, referent_of)[0],
        "any_head_at_referent": (last == task.test.referent[:, None]).any(1).float().mean().item(),
        "uniform": (1 / task.test.real.sum(1)).mean().item(),
    }
    if model.gather is not None:
        scores["head_at_adjective"] = share_of_best_head(model, task, 0, adjective_of)[0]
    return scores


def by_adjective(model, task):
    """What hiding or exchanging the adjective does to the answers, by adjective, and how much "it" looked at it.

    Returns:
        {adjective: dict of "sentences" (how many), "weight" (the largest of a gathering head's weights on the
        adjective, a mean over the sentences), "right", "right_without" and "right_exchanged" (fractions of right
        tickets: with the adjective, with it hidden, and with the twin's in its place)}.
    """
    test, rows = task.test, torch.arange(len(task.test.ids))
    place = adjective_of(test)
    weight = maps(model, test)[0][rows, :, test.pronoun, place].amax(1)  # (B,)
    right, without = right_tickets(model, test).float(), right_without(model, test, place).float()
    exchanged = right_exchanged(model, test).float()
    last = [sentence.tokens[-1] for sentence in task.test_sentences]
    found = {}
    for adjective in sorted(set(last)):
        chosen = torch.tensor([word == adjective for word in last])
        parts = {"weight": weight, "right": right, "right_without": without, "right_exchanged": exchanged}
        means = {name: part[chosen].mean().item() for name, part in parts.items()}
        found[adjective] = {"sentences": int(chosen.sum()), **means}
    return found


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


@experiment(
    "coreference-hidden", 'The reader of "it" with one word hidden from its first layer, or exchanged, by adjective.'
)
def coreference_hidden(seed, sentences=3000, width=32, epochs=8, learning_rate=1e-2, batch_size=64):
    """One reader: right answers as it is, with the adjective or the word before it hidden, or exchanged."""
    task = coreference_task(sentences, seed=seed)
    torch.manual_seed(seed)
    model = TicketReader(len(task.vocab), width)
    history = train_reader(model, task, epochs, learning_rate, batch_size, seed)
    place, rows = adjective_of(task.test), by_adjective(model, task)
    whole = {
        "accuracy": right_tickets(model, task.test).float().mean().item(),
        "without_adjective": right_without(model, task.test, place).float().mean().item(),
        "without_too": right_without(model, task.test, place - 1).float().mean().item(),
    }
    metrics = ("weight", "right", "right_without", "right_exchanged")
    columns = {name: [row[name] for row in rows.values()] for name in metrics}
    results = {"all": whole, "by adjective": {"adjective": list(rows), **columns}}
    return {"results": results, "history": {"reader": history}}
