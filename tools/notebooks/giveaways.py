"""Does what a reader sees give the answer to a question away, before its result is shown?

A stored result says what was measured, as a number or in words. Numbers are everywhere, so one counts as a give-away
only in a sentence that speaks of what was asked: it shares content words with the question.
"""

import re
from dataclasses import dataclass

from tools.notebooks import editions

NUMBER = re.compile(r"(?<![\w.,·−⁻^-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w|[.,]\d)")
SMALL = "zero one two three four five six seven eight nine".split()
NONE = {"none": 0, "nothing": 0, "never": 0}
# What a question and any other sentence may share without speaking of the same thing.
COMMON = set("""
    the and for from with its this that these those not are was were been has have had does did can will would only
    each both all how many much what which who when where why here there into over under about after before between
    more most less least out new other first last same still every per cent percent chapter section figure number
    numbers value wanted chance guessing part three they you your their one two
""".split())  # fmt: skip


@dataclass
class Sentence:
    """A sentence, or a line of code, that a reader sees: its text, and where it stands."""

    text: str
    is_code: bool
    is_between: bool  # the question and its result; or else above the question, in its section


def found(notebook, asked, revealed):
    """Return the sentences between a section's heading and a result that say what was measured, as (answer, text)."""
    asks = re.findall(r"predict\(\s*([\"'])(.*?)\1,", notebook.cells[asked].source, re.S)
    question = " ".join(text for _, text in asks)
    results = re.findall(r"measured: <b>(.+?)</b>", _shown(notebook.cells[revealed]))
    heard = [s for s in _sentences(notebook, asked, revealed) if s.text.strip()]
    return [(result, s.text.strip()) for result in results for s in heard if gives_away(s, question, result)]


def gives_away(sentence, question, result):
    """Whether a sentence says what was measured.

    What it must share with the question: in prose above it two content words; between question and result none, or one
    if the result is a word. Zero to nine are common, so for them it is one word more, and code is not looked at.
    """
    text = _without_question(sentence.text, question)
    shared = len(content_words(text) & content_words(question))
    wanted = 0 if sentence.is_between else 2
    numbers = [number for number in _leading_numbers(result) if not _says(_without_question(question), number)]
    if not NUMBER.search(result):
        said = re.search(rf"(?<!\w){re.escape(result.lower())}(?!\w)", text.lower())
        return bool(said) and not sentence.is_code and shared >= max(1, wanted)
    for number in numbers:
        is_small = number == int(number) and number < 10
        if not (is_small and sentence.is_code) and shared >= (max(2, wanted + 1) if is_small else wanted):
            if _says(text, number, is_fraction="0 to 1" in question or "share" in question or "fraction" in question):
                return True
    return False


def content_words(text):
    """The words of a text that say what it is about, without endings; and its numbers of two digits or more.

    >>> sorted(content_words("At lag 32 this LSTM only guesses."))
    ['32', 'guess', 'lag', 'lstm']
    """
    words = re.findall(r"[a-z][\w-]*\w|\d[\d,.]*\d", text.lower())
    told = (word for word in words if word not in COMMON and (len(word) > 2 or word.isdigit()))
    return {re.sub(r"(ing|ed|es|s)$", "", word) for word in told}


def _says(text, number, is_fraction=False):
    """Whether a number stands in a text: as it is, rounded to two digits or more, as a percentage or a word."""
    if number in range(10) and re.search(rf"\b{SMALL[int(number)]}\b", text.lower()):
        return True
    if any(NONE[word] == number for word in re.findall(r"[a-z]+", text.lower()) if word in NONE):
        return True
    for match in NUMBER.finditer(text):
        digits = match.group().replace(",", "")
        value, decimals = float(digits), len(digits.partition(".")[2])
        if value == number or (is_fraction and re.match(r"\s?(%|per ?cent)", text[match.end() :])
                               and value >= 10 and value == round(100 * number)):  # fmt: skip
            return True
        if decimals and len(digits.replace(".", "").lstrip("0")) >= 2 and value == round(number, decimals):
            return True
    return False


def _leading_numbers(result):
    """The numbers with which a result begins: what comes after 'and', ';' or '(' is said beside it.

    >>> _leading_numbers("13,781, and at radius 0.9 there are 3e-05 left"), _leading_numbers("0, 2, 3 (three seeds)")
    ([13781.0], [0.0, 2.0, 3.0])
    """
    first = re.split(r";|,? and |\(", result)[0]
    return [float(number.replace(",", "")) for number in NUMBER.findall(first)]


def _without_question(text, question=None):
    """A sentence without what it may repeat: the question, the range of a guess, code and formulas within prose."""
    text = text.replace(question, " ") if question else text
    text = re.sub(r"\bfrom 0\b[^.]{0,12}? to 1\d*\b", " ", text)
    return re.sub(r"`[^`]*`|\$[^$]*\$", " ", text)


def _sentences(notebook, asked, revealed):
    """Yield what a reader sees from the section's heading to the result: text, visible code, open output."""
    headings = [place for place, cell in enumerate(notebook.cells[: asked + 1])
                if cell.cell_type == "markdown" and re.search(r"^##? ", cell.source, re.M)]  # fmt: skip
    for place in range(max(headings, default=0), revealed):
        cell, is_between = notebook.cells[place], place >= asked
        if cell.cell_type == "markdown":
            yield from (Sentence(text, False, is_between) for text in _split(cell.source))
            continue
        if not editions.is_folded(cell) and "nbgrader" not in cell.metadata:
            lines = [line for line in cell.source.split("\n") if "predict(" not in line]
            yield from (Sentence(line, True, is_between) for line in lines)
        if not cell.metadata.get("jupyter", {}).get("outputs_hidden"):
            yield from (Sentence(text, False, is_between) for text in _split(_shown(cell)))


def _split(text):
    """Split prose into sentences; a row of a table or an item of a list is one too, a formula on its own is none."""
    text = re.sub(r"^```.*?^```$|\$\$.*?\$\$", "\n\n", text, flags=re.M | re.S)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) )", text):
        yield from re.split(r"(?<=[.!?;])[*\s]+(?=[A-Z`$*\"(])", part.replace("\n", " "))


def _shown(cell):
    parts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        text = output.get("text", "") or data.get("text/markdown", "") or data.get("text/plain", "")
        if "No guess yet of" not in text:  # what `predict` says itself: "put one in place of the three dots"
            parts.append(text)
    return "\n\n".join(parts)
