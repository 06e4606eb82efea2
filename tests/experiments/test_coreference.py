"""Chapter 07's recorded runs: the data are apart, the measures are what they say, the record has what is drawn."""

import math

import pytest
import torch

from course_lib.attention import record_attention
from course_lib.experiments import attention_scaling, coreference


@pytest.fixture(scope="module")
def task():
    return coreference.coreference_task(sentences=400, seed=3)


@pytest.fixture
def model(task):
    torch.manual_seed(0)
    return coreference.TicketReader(len(task.vocab), width=8)


def test_no_pair_of_nouns_is_on_both_sides(task):
    """Fails if a pair of nouns is trained on and tested on, or twins were torn apart."""

    def pairs(part):
        rows = torch.arange(len(part.ids))
        both = torch.stack([part.ids[rows, part.referent], part.ids[rows, part.distractor]], 1).sort(1).values
        return {tuple(pair) for pair in both.tolist()}

    assert len(task.train.ids) + len(task.test.ids) == 400
    assert not pairs(task.train) & pairs(task.test)
    first, second = task.test_sentences[::2], task.test_sentences[1::2]
    assert all(
        a.tokens[:-1] == b.tokens[:-1] and a.referent == b.distractor for a, b in zip(first, second, strict=True)
    )


def test_tickets_are_all_different_and_drawn_anew():
    """Fails if a sentence has a ticket twice, or all sentences have the same."""
    tickets = coreference.draw_tickets(40, 13, torch.Generator().manual_seed(0))
    assert tickets.shape == (40, 13)
    assert all(len(set(row)) == 13 and 0 <= min(row) and max(row) < coreference.TICKETS for row in tickets.tolist())
    assert len({tuple(row) for row in tickets.tolist()}) == 40


def test_the_ticket_comes_through_the_reading_weights_alone(task, model):
    """Fails if there is a second way for tickets: the output must be the weights' mean of projected tickets."""
    part = coreference.Sentences(*(field[:4] for field in task.test))
    tickets = coreference.draw_tickets(*part.ids.shape, torch.Generator().manual_seed(1))
    weights = coreference.maps(model, part)[-1].squeeze(1)  # one head
    values = model.tickets(tickets) @ model.read.in_proj_weight[-8:].T + model.read.in_proj_bias[-8:]
    expected = model.output(model.read.out_proj(weights @ values))
    torch.testing.assert_close(model(part.ids, tickets, part.real), expected)
    changed = tickets.roll(1, dims=1)
    with record_attention(model) as found:
        assert not torch.allclose(model(part.ids, changed, part.real), expected, atol=1e-4)
    torch.testing.assert_close(found["read"].squeeze(1), weights)


def test_padding_changes_nothing(task, model):
    """Fails if a mask is not handed on in one of the layers."""
    ids, real = task.test.ids[:2], task.test.real[:2]
    tickets = coreference.draw_tickets(*ids.shape, torch.Generator().manual_seed(1))
    longer = torch.nn.functional.pad(ids, (0, 3), value=5)
    more = torch.nn.functional.pad(tickets, (0, 3), value=2)
    T = ids.shape[1]
    padded = model(longer, more, torch.nn.functional.pad(real, (0, 3)))
    torch.testing.assert_close(padded[:, :T], model(ids, tickets, real))


def test_causal_reader_cannot_tell_twins_apart(task):
    """Fails if a word after "it" reaches it under the causal mask; the other model must see the difference."""
    torch.manual_seed(0)
    tickets = coreference.draw_tickets(1, task.test.ids.shape[1], torch.Generator().manual_seed(1)).expand(2, -1)
    at = task.test.pronoun[0]
    for causal in (True, False):
        model = coreference.TicketReader(len(task.vocab), width=8, causal=causal)
        a, b = model(task.test.ids[:2], tickets, task.test.real[:2])[:, at]
        assert torch.equal(a, b) == causal


def test_scores_of_a_model_that_knows_and_one_that_does_not(task, model, monkeypatch):
    """Fails if heads are compared with other words, chosen on the test sentences, or tickets of other rows are read."""

    class Oracle:
        """Head 0 looks at the first noun, head 1 at the referent; tells the ticket of the referent, or of the other."""

        gather = None
        training = False

        def __init__(self, wanted):
            self.wanted = wanted

        def modules(self):
            return ()

        def eval(self):
            return self

        def part(self, ids):
            return task.test if len(ids) == len(task.test.ids) else task.train

        def __call__(self, ids, tickets, real):
            rows, part = torch.arange(len(ids)), self.part(ids)
            told = tickets[rows, getattr(part, self.wanted)]
            return (
                torch.nn.functional.one_hot(told, coreference.TICKETS).float().unsqueeze(1).expand(-1, ids.shape[1], -1)
            )

        def maps(self, part):
            T = part.ids.shape[1]
            looks = torch.stack([torch.minimum(part.referent, part.distractor), part.referent], 1)  # (B, 2)
            return [torch.nn.functional.one_hot(looks, T).float().unsqueeze(2).expand(-1, -1, T, -1)]

    monkeypatch.setattr(coreference, "maps", Oracle.maps)
    knows = coreference.coreference_scores(Oracle("referent"), task)
    assert knows == {
        "accuracy": 1, "both_twins": 1, "head_at_referent": 1, "any_head_at_referent": 1,
        "uniform": pytest.approx((1 / task.test.real.sum(1)).mean().item()),
    }  # fmt: skip
    wrong = coreference.coreference_scores(Oracle("distractor"), task)
    assert wrong["accuracy"] == wrong["both_twins"] == 0
    monkeypatch.setattr(coreference, "maps", lambda model, part: [Oracle.maps(model, part)[0][:, :1]])
    assert (
        coreference.coreference_scores(Oracle("referent"), task)["head_at_referent"] == 0.5
    )  # exactly half of all twins
    monkeypatch.undo()
    assert coreference.share_of_best_head(model, task, 0, coreference.adjective_of)[1] in (0, 1)


def test_adjective_is_the_last_real_word(task):
    """Fails if padding is taken for the adjective."""
    last = task.test.ids[torch.arange(len(task.test.ids)), coreference.adjective_of(task.test)]
    assert [task.vocab.stoi[s.tokens[-1]] for s in task.test_sentences] == last.tolist()


def test_training_learns_a_ticket(task):
    """Fails if the loss does not fall below that of a guess among all tickets, or a seed gives two results."""

    def train():
        torch.manual_seed(0)
        model = coreference.TicketReader(len(task.vocab), width=8)
        return coreference.train_reader(model, task, epochs=4, batch_size=32)

    history = train()
    assert len(history) == 4
    assert history[-1]["loss"] < math.log(coreference.TICKETS) < history[0]["loss"] + 0.5
    assert train() == history


def test_the_records_have_what_the_chapter_draws():
    """Fails if a variant or metric is missing, or a seed gives two results."""
    scaling = attention_scaling.attention_scaling(seed=0, widths=(4, 9), queries=5, keys=3)["results"]
    metrics = {"width", "cosine_std", "score_std", "largest", "choices", "slope", "flat"}
    metrics |= {f"gradient_{part}" for part in ("mean", "low", "median", "high")}
    assert list(scaling) == ["with the root", "without"]
    assert all(set(row) == metrics and all(len(values) == 2 for values in row.values()) for row in scaling.values())

    def run():
        return coreference.coreference_heads(seed=1, sentences=120, width=4, epochs=1)

    outcome = run()
    shares = {"parameters", "accuracy", "both_twins", "head_at_referent", "any_head_at_referent", "uniform"}
    assert list(outcome["results"]) == list(coreference.READERS)
    for name, row in outcome["results"].items():
        assert shares <= set(row)
        assert ("head_at_adjective" in row) == (name != "one layer")
        assert len(outcome["history"][name]) == 1
    assert run() == outcome


def test_a_hidden_word_is_hidden_from_the_first_layer_alone(task, model):
    """Fails if a hidden adjective still tells twins apart, or hiding padding changes an answer."""
    whole = coreference.right_tickets(model, task.test)
    T = task.test.ids.shape[1]
    padded = task.test.real.sum(1) < T
    last_column = torch.full((len(whole),), T - 1)
    assert padded.any()
    hidden = coreference.right_without(model, task.test, last_column)
    assert torch.equal(hidden[padded], whole[padded])
    twins = coreference.right_without(model, task.test, coreference.adjective_of(task.test)).view(-1, 2)
    assert not twins.all(1).any()  # the same answer to both, so never both right


def test_an_exchanged_adjective_reaches_the_answer_through_the_first_layer_alone(task, model):
    """Fails if the second layer compares with the twin's words, or each sentence still gathers its own."""
    test, T = task.test, task.test.ids.shape[1]
    drawn = coreference.draw_tickets(len(test.ids) // 2, T, torch.Generator().manual_seed(0))
    _, gathered = model.context(test.ids, test.real[:, None, None])
    right = []
    for row in range(len(test.ids)):
        twin, tickets = row + 1 - 2 * (row % 2), drawn[row // 2]
        question = gathered[twin, test.pronoun[twin]][None, None]  # all else is the sentence's own
        q, k, v = model.read.project(question, model.words(test.ids[row])[None], model.tickets(tickets)[None])
        weights = (q @ k.mT / 8**0.5).masked_fill(~test.real[row], -math.inf).softmax(-1)
        told = model.output(model.read.out_proj((weights @ v)[:, 0])).argmax()
        right.append((told == tickets[test.referent[row]]).item())
    assert any(right)
    assert coreference.right_exchanged(model, test).tolist() == right


def test_the_record_by_adjective_has_what_the_chapter_reads():
    """Fails if a column is missing, or a seed gives two results."""

    def run():
        return coreference.coreference_hidden(seed=1, sentences=200, width=4, epochs=1)

    outcome = run()
    assert set(outcome["results"]["all"]) == {"accuracy", "without_adjective", "without_too"}
    columns = outcome["results"]["by adjective"]
    assert set(columns) == {"adjective", "weight", "right", "right_without", "right_exchanged"}
    assert len({len(column) for column in columns.values()}) == 1
    assert run() == outcome


def test_permuted_words_give_permuted_answers(task, model):
    """Fails if a position enters somewhere: the chapter says that this model reads a bag of words."""
    T = int(task.test.real[0].sum())
    ids, tickets = task.test.ids[:1, :T], coreference.draw_tickets(1, T, torch.Generator().manual_seed(1))
    order = torch.randperm(T, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(ids[:, order], tickets[:, order]), model(ids, tickets)[:, order])


def test_every_parameter_gets_a_gradient_and_a_saved_model_gives_the_same_bits(task, model):
    """Fails if a part is not used, or something that decides the output is not saved."""
    part = coreference.Sentences(*(field[:9] for field in task.train))
    tickets = coreference.draw_tickets(*part.ids.shape, torch.Generator().manual_seed(1))
    coreference.ticket_loss(model, (part, tickets))["loss"].backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    twin = coreference.TicketReader(len(task.vocab), width=8)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(part.ids, tickets, part.real), model(part.ids, tickets, part.real))
