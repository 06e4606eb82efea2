"""The checks of chapter 12: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import pytest
import torch
import torch.nn.functional as F

from course_lib.bert import BERT, BERTConfig
from course_lib.exercises import ch12
from course_lib.utils import number_of_parameters
from tests.helpers.solutions import solution, verdict

SOLUTIONS = {
    "hide": "hide",
    "chosen_loss": "chosen_loss",
    "pretraining_step": "pretraining_step",
    "wordpiece": "wordpiece",
    "bert_parameters": "bert_parameters",
    "similarities": "similarities",
}

# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def hidden(below=0.8, since=0.9, everything=False, swap=False, targets=None):
    """Masking with mistakes to choose from."""

    def hide(ids, maskable, choose, fate, others, mask_id):
        chosen = (maskable | everything) & (choose < 0.15)
        first, second = (others, mask_id) if swap else (mask_id, others)
        inputs = torch.where(chosen & (fate < below), first, ids)
        inputs = torch.where(chosen & (fate >= below) & (fate >= since), second, inputs)
        wanted = ids.masked_fill(~chosen, -100)
        return inputs, wanted if targets is None else targets(ids, inputs, chosen, fate)

    return hide


def own_fate(ids, maskable, choose, fate, others, mask_id):
    """What becomes of a chosen token is drawn anew."""
    fate = torch.rand(fate.shape, generator=torch.Generator().manual_seed(1))
    return hidden()(ids, maskable, choose, fate, others, mask_id)


def early(ids, maskable, choose, fate, others, mask_id):
    """The last two tenths exchanged: the random token below 0.9, not from there on."""
    inputs, targets = hidden(since=1.1)(ids, maskable, choose, fate, others, mask_id)
    return torch.where((targets != -100) & (fate >= 0.8) & (fate < 0.9), others, inputs), targets


def others_over_masks(ids, maskable, choose, fate, others, mask_id):
    """Two steps, of which the second holds for the masked tokens too."""
    inputs, targets = hidden(since=1.1)(ids, maskable, choose, fate, others, mask_id)
    return torch.where((targets != -100) & (fate < 0.9), others, inputs), targets


def going_back(word, vocab, mark=""):
    """Any cut into known pieces: it goes back where the longest piece leads nowhere."""
    for end in range(len(word), 0, -1):
        if mark + word[:end] in vocab:
            rest = [] if end == len(word) else going_back(word[end:], vocab, "##")
            if rest != ["[UNK]"]:
                return [mark + word[:end], *rest]
    return ["[UNK]"]


def loss(targets_as=None, divide=None, sign=1):
    def chosen_loss(logits, targets):
        asked = targets != -100
        if targets_as == "zero":
            return F.cross_entropy(logits.flatten(0, 1), targets.clamp(min=0).flatten())
        if targets_as == "half mended":
            return loss("zero")(logits, targets) * targets.numel() / asked.sum()
        if targets_as == "logits":
            return -logits[asked].gather(1, targets[asked][:, None]).mean()
        if targets_as == "rows":
            rows = [F.cross_entropy(x, t) for x, t in zip(logits, targets, strict=True)]
            return torch.stack(rows).mean()
        total = F.cross_entropy(logits[asked], targets[asked], reduction="sum")
        return sign * total / {None: asked.sum(), "all": targets.numel(), "one": 1, "rows": len(targets)}[divide]

    return chosen_loss


def step(told=None, read=None, maskable=None, targets_as=None, swap=False, reduce=None, late=False, sign=1, order=()):
    """A step of pre-training with mistakes to choose from."""

    def pretraining_step(network, optimizer, ids, real, choose, fate, others):
        where = maskable(ids, real) if maskable else real & (ids >= 5)
        inputs, targets = hidden(swap=swap)(ids, where, choose, fate, others, 4)
        inputs = read(ids, inputs) if read else inputs
        targets = targets_as(ids, real, targets) if targets_as else targets

        def measured():
            logits = network(inputs, told(real) if told else real)
            asked = targets != -100
            total = F.cross_entropy(logits[asked], targets[asked], reduction="sum")
            return total / {None: asked.sum(), "sum": 1, "all": targets.numel()}[reduce]

        loss = measured()
        for name in order or ("zero_grad", "backward", "step"):
            {"zero_grad": optimizer.zero_grad, "backward": (sign * loss).backward, "step": optimizer.step}[name]()
        return (measured() if late else loss).item()

    return pretraining_step


def masked_alone(mask):
    """A step whose loss counts the positions of `mask` alone; None: all chosen ones that show another token."""

    def pretraining_step(network, optimizer, ids, real, choose, fate, others):
        inputs, targets = hidden()(ids, real & (ids >= 5), choose, fate, others, 4)
        counted = inputs != ids if mask is None else inputs == mask
        loss = F.cross_entropy(network(inputs, real)[counted], targets[counted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return pretraining_step


def clipped(each=False):
    """A step in which the gradients are clipped first, together or each parameter by itself."""

    def pretraining_step(network, optimizer, ids, real, choose, fate, others):
        inputs, targets = hidden()(ids, real & (ids >= 5), choose, fate, others, 4)
        loss = F.cross_entropy(network(inputs, real).transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        for group in network.parameters() if each else [list(network.parameters())]:
            torch.nn.utils.clip_grad_norm_(group, 0.01)
        optimizer.step()
        return loss.item()

    return pretraining_step


def either(inside=False, first=False):
    """Pieces found with or without ##: inside a word, or at its start."""

    def wordpiece(word, vocab):
        known = set(vocab)
        if inside:
            known |= {f"##{piece}" for piece in vocab if not piece.startswith("##")}
        if first:
            known |= {piece.removeprefix("##") for piece in vocab}
        return ch12._pieces(word, known)

    return wordpiece


def counted(**wrong):
    return lambda V, L, D, N, F: ch12._parameters(V, L, D, N, F, **wrong)


def less(amount):
    return lambda V, L, D, N, F: ch12._parameters(V, L, D, N, F) - amount(V, L, D, N, F)


def pieces(longest=True, marks=True, unknown=True, strip=False, last=True):
    def wordpiece(word, vocab):
        found = ch12._pieces(word, vocab, longest, marks, unknown)
        found = found if last or found == ["[UNK]"] else found[:-1]
        return [piece.removeprefix("##") for piece in found] if strip else found

    return wordpiece


def compared(**wrong):
    return lambda *given: ch12._cosines(*given, **wrong)


def units(x, real):
    """Texts whose tokens have length 1."""
    return F.normalize(x, dim=2), real


PLANTED = {
    "hide": [
        ("not maskable", hidden(everything=True)),
        ("all chosen tokens became", hidden(below=1.1)),
        ("yours has the token of `others`", hidden(since=0.8)),
        ("yours has the mask", hidden(below=0.9)),
        ("no token becomes another", hidden(since=1.1)),
        ("masks and other tokens have changed places", hidden(swap=True)),
        ("targets are the ids everywhere", hidden(targets=lambda ids, inputs, chosen, fate: ids)),
        ("itself is to be predicted", hidden(targets=lambda ids, inputs, chosen, fate: inputs.where(chosen, -100))),
        ("only the masked positions", hidden(targets=lambda ids, inputs, chosen, fate: ids.where(inputs == 4, -100))),
        (
            "must be predicted like",
            hidden(targets=lambda ids, inputs, c, fate: ids.where(c & ((fate < 0.8) | (fate >= 0.9)), -100)),
        ),
        ("are 0, which is a token", hidden(targets=lambda ids, inputs, chosen, fate: ids.where(chosen, 0))),
        ("the targets are wrong", hidden(targets=lambda ids, inputs, chosen, fate: ids.where(chosen, 7))),
        ("below 0.9 stand the tokens of `others`", others_over_masks),
        ("stand everywhere, written over the masks", hidden(below=0, since=0)),
        ("have changed places: the token of `others`", early),
        ("use the id that was passed", lambda ids, m, c, f, others, mask_id: hidden()(ids, m, c, f, others, 4)),
        ("not at 0.15", lambda ids, m, c, f, *rest: hidden(below=0.8 + 1e-9)(ids, m, c, f, *rest)),
        ("the input is", hidden(below=0.5)),
        ("not by `choose` or a draw of your own", own_fate),
        ("wanted a tuple", lambda ids, *others: ids),
    ],
    "chosen_loss": [
        ("counted as token 0", loss("zero")),
        ("divided by all positions", loss(divide="all")),
        ("the sum is not", loss("half mended")),
        ("that is the sum", loss(divide="one")),
        ("rows' means", loss("rows")),
        ("sign is wrong", loss(sign=-1)),
        ("softmax is missing", loss("logits")),
        ("which applies its own", lambda logits, targets: loss()(logits.softmax(-1), targets)),
        ("number of rows", loss(divide="rows")),
        ("rounds to log 0", lambda logits, targets: F.nll_loss(logits.softmax(-1).log().transpose(1, 2), targets)),
        ("token 0 is left out", lambda logits, targets: F.cross_entropy(logits[targets > 0], targets[targets > 0])),
        ("it is a float", lambda logits, targets: loss()(logits, targets).item()),
        ("cut off from the logits", lambda logits, targets: loss()(logits, targets).detach()),
        ("its gradient is not", lambda logits, targets: loss()(logits.detach(), targets) + 0 * logits.sum()),
        ("a size is written", lambda logits, targets: loss()(logits, targets) * 3 / len(logits)),
        ("got 5.0000", lambda logits, targets: 5.0),
        (
            "torch's cross_entropy is used",
            lambda logits, targets: F.cross_entropy(logits[targets >= 0], targets[targets >= 0]),
        ),
        (
            "torch's nll_loss is used",
            lambda logits, targets: F.nll_loss(logits[targets >= 0].log_softmax(-1), targets[targets >= 0]),
        ),
        (
            "Target -100 is out of bounds. -100 was used",
            lambda logits, targets: F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=0),
        ),
        (
            "with size 11. -100 was used",
            lambda logits, targets: -logits.log_softmax(-1)[0, torch.arange(7), targets[0]].mean(),
        ),
    ],
    "pretraining_step": [
        ("was never called", lambda network, optimizer, ids, *given: 0.0),
        ("not `real`", step(told=lambda real: torch.ones_like(real))),
        ("nothing hidden", step(read=lambda ids, inputs: ids)),
        ("special tokens and padding; only words", step(maskable=lambda ids, real: torch.ones_like(real))),
        ("hidden too: special tokens; only words", step(maskable=lambda ids, real: real)),
        ("hidden too: padding; only words", step(maskable=lambda ids, real: ~real | (ids >= 5))),
        ("something else than the inputs", step(swap=True)),
        ("FIRST included", step(maskable=lambda ids, real: real & (ids > 5))),
        ("over all positions, with the text", step(targets_as=lambda ids, real, targets: ids)),
        ("over the real positions", step(targets_as=lambda ids, real, targets: ids.where(real, -100))),
        ("only the masked positions count", masked_alone(4)),
        ("stay as they are do not count", masked_alone(None)),
        ("the sum over the chosen", step(reduce="sum")),
        ("counted as token 0", step(targets_as=lambda ids, real, targets: targets.clamp(min=0))),
        ("divided by all positions", step(reduce="all")),
        ("the loss after the step", step(late=True)),
        ("the loss is 5.0000", lambda *given: 0 * step()(*given) + 5),
        ("did not change", step(order=("zero_grad", "backward"))),
        ("were added", step(order=("backward", "step"))),
        ("were never computed", step(order=("step",))),
        ("goes uphill", step(sign=-1)),
        ("is 2 times as long", step(order=("zero_grad", "backward", "step", "step"))),
        ("nothing is clipped", clipped()),
        ("did not make one step", clipped(each=True)),
        ("eval() was called", lambda network, *given: step()(network.eval(), *given)),
        ("the loss is a str", lambda *given: str(step()(*given))),
        (
            "returned with its graph",
            lambda *given: torch.tensor(step()(*given), dtype=torch.float64, requires_grad=True),
        ),
    ],
    "wordpiece": [
        ("shortest", pieces(longest=False)),
        ("without ##", pieces(marks=False)),
        ("becomes one [UNK]", pieces(unknown=False)),
        ("## was lost", pieces(strip=True)),
        ("last piece", pieces(last=False)),
        ("became ['[UNK]']", lambda word, vocab: ["[UNK]"]),
        ("no way back", going_back),
        (
            "cannot be cut to its end",
            lambda word, vocab: [p for p in ch12._pieces(word, vocab, unknown=False) if p != "[UNK]"],
        ),
        ("'playun' became ['play', '##un']", either(inside=True)),
        ("'ingplay' became ['ing', '##play']", either(first=True)),
        ("to make letters small", lambda word, vocab: ch12._pieces(word.lower(), vocab)),
        ("is a tuple", lambda word, vocab: tuple(ch12._pieces(word, vocab))),
    ],
    "bert_parameters": [
        ("pooler is missing", counted(pooler=False)),
        ("segments' table", less(lambda V, L, D, N, F: 2 * D)),
        ("has two rows", less(lambda V, L, D, N, F: D)),
        ("those of the layers are not", less(lambda V, L, D, N, F: N * (5 * D + F))),
        ("a LayerNorm is surplus", less(lambda V, L, D, N, F: -2 * D)),
        ("head for pairs", less(lambda V, L, D, N, F: -(2 * D + 2))),
        ("head of the masked language model", less(lambda V, L, D, N, F: -(D * D + 3 * D + V))),
        ("positions' table", less(lambda V, L, D, N, F: L * D)),
        ("biases of query, key and value", less(lambda V, L, D, N, F: 3 * D * N)),
        ("4 D a layer", less(lambda V, L, D, N, F: 4 * D * N)),
        ("2 D a layer", less(lambda V, L, D, N, F: 2 * D * N)),
        ("a scale and a shift: 2 D", less(lambda V, L, D, N, F: 2 * D * N + D)),
        ("need not be 4 D", lambda V, L, D, N, F: ch12._parameters(V, L, D, N, 4 * D)),
        ("all LayerNorms", counted(norms=False)),
        ("biases are missing", counted(biases=False)),
        ("fourth matrix", counted(qkv=3)),
        ("one layer", lambda V, L, D, N, F: ch12._parameters(V, L, D, 1, F)),
        ("embeddings are missing", counted(embeddings=False)),
        ("output layer is counted", less(lambda V, L, D, N, F: -V * D)),
        ("bias of the output layer", less(lambda V, L, D, N, F: -V)),
        ("both heads", less(lambda V, L, D, N, F: -(D * D + 5 * D + V + 2))),
        ("is a float", less(lambda V, L, D, N, F: 0.0)),
        ("you count 3,125; there are 3,126", less(lambda V, L, D, N, F: 1)),
        ("wrong for BERT-base", lambda V, L, D, N, F: ch12._parameters(V, 13, D, N, F)),
        ("you count 1;", lambda V, L, D, N, F: 1),
    ],
    "similarities": [
        ("padding is counted: the vectors", compared(padded=True)),
        ("counted in the documents, and", lambda q, r, d, s: compared()(q, r, d, torch.ones_like(s))),
        ("counted in the queries, and", lambda q, r, d, s: compared()(q, torch.ones_like(r), d, s)),
        ("nothing is normalised", compared(units=(False, False))),
        ("documents' vectors are not", compared(units=(True, False))),
        ("queries' vectors are not", compared(units=(False, True))),
        ("maximum over the tokens", compared(pool="max")),
        ("first token", compared(pool="first")),
        ("over the batch", compared(axis=0)),
        (
            "and not the mean of them",
            lambda *texts: compared(units=(False, False))(*units(*texts[:2]), *units(*texts[2:])),
        ),
        ("before the mean", lambda *texts: compared()(*units(*texts[:2]), *units(*texts[2:]))),
        ("transposed", lambda *texts: compared()(*texts[2:], *texts[:2])),
        ("a size is written", lambda *texts: compared()(*texts) * len(texts[0]) / 3),
        ("goes to 2.", lambda *texts: compared()(*texts) * 3),
        ("softmax of the cosines over the documents", lambda *texts: compared()(*texts).softmax(1)),
        ("softmax of the cosines over the queries", lambda *texts: (compared()(*texts) / 0.1).softmax(0)),
        ("of other vectors", lambda *texts: compared()(*texts) / 2),
        ("has shape (3, 6, 4); wanted (3, 5)", lambda queries, *others: queries),
    ],
}
IDENTITY = {
    "hide": lambda ids, *others: (ids, ids),
    "chosen_loss": lambda logits, targets: logits,
    "pretraining_step": lambda network, optimizer, ids, *given: ids,
    "wordpiece": lambda word, vocab: word,
    "bert_parameters": lambda V, L, D, N, F: V,
    "similarities": lambda queries, *others: queries,
}
ZEROS = {
    "hide": lambda ids, *others: (torch.zeros_like(ids), torch.zeros_like(ids)),
    "chosen_loss": lambda logits, targets: logits.sum() * 0,
    "pretraining_step": lambda network, optimizer, ids, *given: 0.0,
    "wordpiece": lambda word, vocab: [],
    "bert_parameters": lambda V, L, D, N, F: 0,
    "similarities": lambda queries, real, documents, _: torch.zeros(len(queries), len(documents)),
}


@pytest.mark.parametrize("name", SOLUTIONS)
def test_reference_passes(name):
    """Fails if the notebook's own solution is rejected."""
    assert verdict(getattr(ch12, name), solution("12", SOLUTIONS[name])) == f"passed: {name}"


def test_other_right_ways_are_welcome():
    """Fails if a check insists on the reference's own way: the library's code, torch's loss."""

    def by_logsumexp(logits, targets):
        b, t = (targets != -100).nonzero(as_tuple=True)
        return (logits[b, t].logsumexp(-1) - logits[b, t, targets[b, t]]).mean()

    def cosine_of_means(queries, real, documents, real_documents):
        means = [
            (x * r[..., None]).sum(1) / r.sum(1, keepdim=True)
            for x, r in ((queries, real), (documents, real_documents))
        ]
        return torch.cosine_similarity(means[0][:, None], means[1][None], dim=-1).float()

    def in_parts(network, optimizer, ids, real, choose, fate, others):
        inputs, targets = hidden()(ids, ids > 4, choose, fate, others, 4)
        mean = F.nll_loss(network(inputs, real).log_softmax(-1).transpose(1, 2), targets)
        for parameter in network.parameters():
            (parameter.grad,) = torch.autograd.grad(mean, parameter, retain_graph=True)
        optimizer.step()
        return mean.detach()

    assert verdict(ch12.similarities, cosine_of_means) == "passed: similarities"
    assert verdict(ch12.pretraining_step, step()) == "passed: pretraining_step"
    assert verdict(ch12.pretraining_step, in_parts) == "passed: pretraining_step"
    assert verdict(ch12.chosen_loss, by_logsumexp) == "passed: chosen_loss"
    assert verdict(ch12.hide, hidden()) == "passed: hide"


def test_parameters_are_those_of_a_real_model():
    """Fails if the check's own count is not that of the network it speaks of."""
    sizes = {"V": 11, "L": 13, "D": 8, "N": 5, "F": 14}
    model = BERT(BERTConfig(11, max_len=13, d_model=8, num_layers=5, num_heads=2, dim_feedforward=14))
    assert number_of_parameters(model) == ch12._parameters(**sizes)
    assert ch12._parameters(30522, 512, 768, 12, 3072) == 109_482_240


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    """Fails if a planted mistake passes or gets another diagnosis."""
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch12, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    """Fails if two different mistakes are told the same."""
    messages = [verdict(getattr(ch12, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    """Fails if returning the input, or zeros, is enough."""
    assert verdict(getattr(ch12, name), answers[name]).startswith("not yet: ")


@pytest.mark.parametrize("name", PLANTED)
def test_untouched_is_not_attempted(name):
    """Fails if an empty answer is called wrong."""
    assert verdict(getattr(ch12, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", PLANTED)
def test_messages_do_not_show_the_solution(name):
    """Fails if a line of the reference stands in a diagnosis."""
    messages = " ".join(verdict(getattr(ch12, name), wrong) for _, wrong in PLANTED[name])
    for line in (
        "torch.where",
        "masked_fill",
        "log_softmax(",
        "gather",
        "range(len",
        "D * F",
        "backward()",
        "[..., None]",
    ):
        assert line not in messages


def test_words_are_asked_for_before_the_good_answer_is_told(capsys):
    """Fails if the exercise in words has no hint, or tells what is wanted before anything was written."""
    for number in (1, 2, 3):
        ch12.what_tuning_adds.hint(number)
    ch12.what_tuning_adds.compare(...)
    assert "no answer yet" in capsys.readouterr().out
    ch12.what_tuning_adds.compare("word " * 20)
    assert "product" in capsys.readouterr().out
