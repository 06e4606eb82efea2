"""Translation: batches of sentence pairs, the loss, training on the model's own words, and what attention looked at."""

import numbers
from typing import NamedTuple

import torch
import torch.nn.functional as F

from course_lib.generate import greedy
from course_lib.text import EOS, SOS, bucket_batches, pad_batch
from course_lib.utils import eval_mode
from course_lib.utils.validate import check_finite, check_ids, check_probability, check_tensor


class TranslationBatch(NamedTuple):
    """A padded batch of sentence pairs."""

    source: torch.Tensor  # (B, S) int64
    source_real: torch.Tensor  # (B, S) bool, True = a real token
    target_in: torch.Tensor  # (B, T) int64: <sos> and the words; what the decoder reads
    target_out: torch.Tensor  # (B, T) int64: the words and <eos>; what it must predict
    target_real: torch.Tensor  # (B, T) bool, True = a real token of target_out


def translation_batches(sources, targets, batch_size, *, generator=None, shuffle=True):
    """Padded batches of pairs of lists of ids; pairs of similar lengths stand together.

    `<sos>` and `<eos>` are added here. The generator decides the order; shuffle=False gives the same batches in each
    call, for validation.

    >>> batch = next(translation_batches([[4, 5], [6]], [[7], [8, 9]], 2, shuffle=False))
    >>> batch.target_in.tolist(), batch.target_out.tolist()
    ([[2, 7, 1], [2, 8, 9]], [[7, 3, 1], [8, 9, 3]])
    """
    if len(sources) != len(targets) or any(len(source) == 0 for source in sources):
        raise ValueError(f"wanted as many sources as targets, none empty, got {len(sources)} and {len(targets)}")
    # By target length, since the logits cost most; within that by source length.
    longest = max(map(len, sources), default=0) + 1
    lengths = [len(target) * longest + len(source) for source, target in zip(sources, targets, strict=True)]
    order = bucket_batches(lengths, batch_size, generator, shuffle)
    return (translation_batch([sources[i] for i in chunk], [targets[i] for i in chunk]) for chunk in order)


def translation_batch(sources, targets):
    """One `TranslationBatch` of these pairs."""
    target_in, target_real = pad_batch([[SOS, *target] for target in targets])
    target_out, _ = pad_batch([[*target, EOS] for target in targets])
    return TranslationBatch(*pad_batch(sources), target_in, target_out, target_real)


def translation_loss(model, batch, *, label_smoothing=0.0, teacher_forcing=1.0):
    """Cross-entropy in nats and correct predictions, as sums over the `count` real target tokens.

    Args:
        model: `Seq2Seq`, or another model with its interface.
        batch: `TranslationBatch`.
        label_smoothing: how much of the target's probability is spread evenly over the vocabulary; in training alone,
            so that validation losses can be compared and exp gives the perplexity.
        teacher_forcing: in training, the probability with which a true word is fed, see `scheduled_sampling`.

    Source: label smoothing: Szegedy et al. (2016), arXiv:1512.00567, section 7.
    """
    check_probability(label_smoothing=label_smoothing)
    check_share(teacher_forcing)
    source, source_real, target_in, target_out, target_real = batch
    if teacher_forcing == 1 or not model.training:
        logits = model(source, source_real, target_in)  # (B, T, V)
    else:
        logits = scheduled_sampling(model, source, source_real, target_in, teacher_forcing)
    loss = F.cross_entropy(
        logits.flatten(0, 1),
        target_out.masked_fill(~target_real, -100).flatten(),  # -100: not counted
        reduction="sum",
        label_smoothing=label_smoothing if model.training else 0.0,
    )
    right = (logits.max(-1).indices == target_out) & target_real  # argmax, but four times as fast in bfloat16 on a CPU
    return {"loss": loss, "count": target_real.sum(), "accuracy": right.sum()}


def scheduled_sampling(model, source, source_real, target_in, teacher_forcing=0.0, generator=None):
    r"""Logits when the model is fed its own words, as it is when it translates, or a mixture with the true ones.

    $$ \hat y_{t-1} = \begin{cases} y_{t-1} & u < p \\ \arg\max \text{logits}_{t-1} & \text{otherwise} \end{cases},
       \qquad u \sim U[0, 1) $$

    with p = teacher_forcing, drawn anew for every sentence and step by the `generator` (on the CPU; None: torch's own).
    The first word fed is target_in[:, 0] in any case. At p = 1 the logits (B, T, V) are those of teacher forcing,
    computed step by step. Gradients do not flow through the choice of a word.

    Source: Bengio et al. (2015), arXiv:1506.03099, section 2.4. Differs: the best word is fed, not a sampled one.
    """
    check_share(teacher_forcing)
    check_ids("target_in", target_in, ("B", "T"), model.vocab_size)
    truth = torch.rand(target_in.shape, generator=generator).to(target_in.device) < teacher_forcing  # (B, T)
    state, tokens, rows = model.start(source, source_real), target_in[:, 0], []
    for t in range(target_in.shape[1]):
        if t > 0:
            tokens = torch.where(truth[:, t], target_in[:, t], rows[-1].argmax(-1))  # (B,)
        logits, state = model.step(tokens.unsqueeze(1), state)  # (B, V)
        rows.append(logits)
    return torch.stack(rows, 1)


def translate(model, sources, search=greedy, *, batch_size=128, **options):
    """A `course_lib.generate.Hypothesis` for each source, a list of ids, found in batches of similar lengths.

    `search` is `greedy` or `beam_search`, and takes the `options`.
    """
    device, found = next(model.parameters()).device, [None] * len(sources)
    with eval_mode(model):
        for chunk in bucket_batches([len(source) for source in sources], batch_size, shuffle=False):
            ids, real = pad_batch([sources[i] for i in chunk])
            for i, hypothesis in zip(chunk, search(model, ids.to(device), real.to(device), **options), strict=True):
                found[i] = hypothesis
    return found


@torch.inference_mode()
def alignment(model, source, source_real, target_in):
    """Where a `Seq2Seq` with an `AttentionDecoder` looks when it is fed the true target, in evaluation mode: (B, T, S).

    Row t holds the weights with which the word after target_in[:, t] was predicted.
    """
    with eval_mode(model):
        _, state = model.decoder(target_in, model.start(source, source_real))
    if "weights" not in state:
        raise ValueError(f"a {type(model.decoder).__name__} has no attention weights")
    return state["weights"]


def alignment_accuracy(weights, truth):
    """How often the largest weight is on the source word that the target word translates, from 0 to 1.

    `weights` is the attention of one sentence, (T, S) without a row for `<eos>`, `truth` holds T source positions.

    >>> alignment_accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), [0, 1, 1])
    0.666...
    """
    check_tensor("weights", weights, ("T", "S"), dtype="float")
    check_finite("weights", weights)
    truth = torch.as_tensor(truth, device=weights.device)
    check_ids("truth", truth, (len(weights),), vocab_size=weights.shape[1])
    return (weights.argmax(-1) == truth).double().mean().item()


def check_share(teacher_forcing):
    """A probability that may be 1."""
    if not isinstance(teacher_forcing, numbers.Real) or not 0 <= teacher_forcing <= 1:
        raise ValueError(f"teacher_forcing is a probability from 0 to 1, got {teacher_forcing}")
