"""Texts of a GPT trained on Shakespeare, drawn in ten ways, and how they differ (chapter 13)."""

import re

import torch
import torch.nn.functional as F

from course_lib.experiments import experiment
from course_lib.experiments.shakespeare_gpt import our_learner, shakespeare
from course_lib.experiments.shakespeare_weights import make_model
from course_lib.generate import generate
from course_lib.pretrained import load_shakespeare
from course_lib.utils import number_of_parameters

WAYS = {
    "greedy": {"top_k": 1},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.7": {"temperature": 0.7},
    "pure sampling": {},
    "temperature 1.3": {"temperature": 1.3},
    "top-k 5": {"top_k": 5},
    "top-k 40": {"top_k": 40},
    "top-p 0.8": {"top_p": 0.8},
    "top-p 0.9": {"top_p": 0.9},
    "top-p 0.95": {"top_p": 0.95},
}


def distinct(texts, n):
    """How many different n-grams of characters there are, as a fraction of all n-grams of all texts.

    Returns:
        float from 0 to 1.

    >>> distinct(["abab", "abc"], 2)  # ab ba ab, ab bc: 3 of 5
    0.6

    Source: Li et al. (2016), "A Diversity-Promoting Objective Function", arXiv:1510.03055, section 5.3, of words.
    """
    grams = [gram for text in texts for gram in _grams(text, n)]
    return len(set(grams)) / len(grams)


def repetition(texts, n=8):
    """Fraction of the n-grams of characters that stood before in the same text.

    Returns:
        float from 0 to 1.

    >>> repetition(["ababa", "abc"], 2)  # ab ba AB BA, ab bc: 2 of 6
    0.3333333333333333
    """
    grams = [_grams(text, n) for text in texts]
    total = sum(map(len, grams))
    return (total - sum(len(set(found)) for found in grams)) / total


def known_words(texts, known):
    """Fraction of the words that occur in a set; a text's last word, which may be cut off, does not count.

    Args:
        known: set of words as `words` gives them.

    Returns:
        float from 0 to 1; 0 if there are no words.

    >>> known_words(["Thou art thuo, no", "a"], {"thou", "art", "no"}) == 2 / 3
    True
    """
    found = [word for text in texts for word in words(text)[:-1]]
    return sum(word in known for word in found) / max(1, len(found))


def words(text):
    """Words in lower case: letters and apostrophes."""
    return re.findall(r"[a-z']+", text.lower())


def _grams(text, n):
    return [text[i : i + n] for i in range(len(text) - n + 1)]


@torch.no_grad()
def negative_log_likelihood(model, prompts, texts):
    """Mean nats a token that the model gives to texts after their prompts.

    Args:
        prompts: list of lists of ids, none empty.
        texts: list of lists of ids: what follows them.
    """
    total = 0.0
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([*prompt, *text])
        logits = model(ids[None, :-1])[0, len(prompt) - 1 :]
        total += F.cross_entropy(logits, ids[len(prompt) :], reduction="sum").item()
    return total / sum(map(len, texts))


def speeches(text, count, length):
    r"""Cut out names of speakers with what follows them, at places spread evenly over a text.

    Args:
        text: str with speeches, "NAME:" on a line of its own after an empty line.

    Returns:
        list of (prompt, continuation): the name with the colon and the line's end; so many characters.

    >>> speeches('x\n\nHAMLET:\nTo be or not', 1, 5)
    [('HAMLET:\n', 'To be')]
    """
    ends = [(m.group(1), m.end()) for m in re.finditer(r"\n\n([^\n]+:\n)", text) if m.end() + length <= len(text)]
    if len(ends) < count:
        raise ValueError(f"wanted {count} speeches followed by {length} characters, found {len(ends)}")
    chosen = [ends[i * len(ends) // count] for i in range(count)]
    return [(name, text[end : end + length]) for name, end in chosen]


@experiment("gpt-sampling", "Texts of a GPT trained on Shakespeare, drawn in ten ways, and real ones beside them.")
def gpt_sampling(
    seed,
    layers=4,
    heads=4,
    width=128,
    block=256,
    batch_size=8,
    steps=500,
    schedule=6000,
    learning_rate=3e-3,
    texts=20,
    length=240,
):
    """The model of `shakespeare_weights`, stopped after `steps` steps of `schedule`; a text fits its context.

    Each way continues the same prompts, names of speakers from the validation text; "real text" is what stands there.
    "nll" is the mean negative log-likelihood of the characters under the model itself, whatever way drew them.
    Distinct n-grams are counted over all texts together, repeated 8-grams within each; "known_words" is the share of
    words that occur in the training text. "sample" is the first text.
    """
    train, valid, chars = shakespeare()
    torch.manual_seed(seed)
    learner = our_learner(make_model(len(chars), block, layers, heads, width), schedule, learning_rate, seed)
    learner.advance(train, block, batch_size, steps)
    model, known = learner.model.eval(), set(words("".join(chars[i] for i in train)))
    found = ten_ways(model, speeches("".join(chars[i] for i in valid), texts, length), chars, known, seed)
    sizes = {"valid_loss": learner.whole(valid, block), "parameters": number_of_parameters(model)}
    return {"results": {"model": sizes, **found}}


@experiment("speaker-sampling", "Texts of the course's trained GPT, drawn in ten ways, and real ones beside them.")
def speaker_sampling(seed, texts=20, length=240):
    """As `gpt_sampling`, of the shipped weights: the seeds differ in the draws alone, greedy text does not."""
    train, valid, chars = shakespeare()
    model, known = load_shakespeare()[0], set(words("".join(chars[i] for i in train)))
    return {"results": ten_ways(model, speeches("".join(chars[i] for i in valid), texts, length), chars, known, seed)}


def ten_ways(model, real, chars, known, seed):
    """A row for the real continuations, and one for each way of drawing others.

    Args:
        real: list of (prompt, continuation), as `speeches` gives them.
        chars: the characters in the order of their numbers.
        known: set of words.
    """
    number, length = {char: i for i, char in enumerate(chars)}, len(real[0][1])
    prompts = [[number[char] for char in prompt] for prompt, _ in real]
    drawn = {"real text": [[number[char] for char in text] for _, text in real]}
    for way, options in WAYS.items():
        drawn[way] = generate(model, prompts, length, torch.Generator().manual_seed(seed), **options)
    results = {}
    for way, ids in drawn.items():
        strings = ["".join(chars[i] for i in row) for row in ids]
        results[way] = {"nll": negative_log_likelihood(model, prompts, ids), **text_statistics(strings, known)}
        results[way]["sample"] = real[0][0] + strings[0]
    return results


def text_statistics(texts, known):
    """Variety, repetition and real words of texts, as a row."""
    return {
        "distinct_3": distinct(texts, 3),
        "distinct_4": distinct(texts, 4),
        "repetition": repetition(texts),
        "known_words": known_words(texts, known),
    }
