"""Fill the course map of README.md: chapters, badges, times. `make notebooks` runs it."""

import re
import sys

import nbformat

from tools.notebooks import editions

MAP = [
    (
        "01",
        "Sequences and language models",
        "what order is worth; n-grams; perplexity; the first neural language model",
    ),
    ("02", "Text to tensors", "tokens, vocabularies, padding, masks, buckets; BLEU; bags of words and what they miss"),
    ("03", "Recurrent networks", "a loop with a state; a character model; stacked, bidirectional"),
    ("04", "Backpropagation through time", "by hand, by autograd, by differences; vanishing and exploding; truncation"),
    ("05", "LSTM and GRU", "gates one by one; memory tasks; sentiment"),
    ("06", "Sequence to sequence", "encoder and decoder; attention over encoder states; beam search"),
    ("07", "Attention", "queries, keys, values, masks, heads"),
    ("08", "Position", "sinusoidal, learned, relative, RoPE, ALiBi"),
    ("09", "The Transformer", "encoder, decoder, both; training and decoding"),
    ("10", "What it costs", "parameters, operations, memory, path length"),
    ("11", "Training tricks", "warm-up, Pre-LN, ReZero, RAdam, measured"),
    ("12", "BERT", "masked language models, pre-training and fine-tuning"),
    ("13", "GPT", "causal language models, sampling, the KV cache"),
    (
        "14",
        "From GPT-2 to the models of today",
        "RMSNorm, SwiGLU, grouped queries; LoRA; eight bits; loops that train in parallel",
    ),
]
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
SITE = "<!-- the site -->", "<!-- end of the site -->"
BEGIN, END = "<!-- course map: made by tools/readme.py -->", "<!-- end of the course map -->"


def course_map():
    """Return the table of chapters as Markdown."""
    files = {path.stem[:2]: path for path in editions.sources()}
    rows = ["| | chapter | you read | it runs | open |", "|---|---|---|---|---|"]
    for number, title, about in MAP:
        if number not in files:
            rows.append(f"| {number} | {title}: {about} | | | *in preparation* |")
            continue
        name = files[number].stem
        course = nbformat.read(editions.NOTEBOOKS / f"{name}.ipynb", as_version=4).metadata.course
        seconds = max(10, -(-course.seconds // 10) * 10)  # up to the next ten
        rows.append(
            f"| {number} | [{title}](notebooks/{name}.ipynb): {about}. Needs: {course.needs}. "
            f"| {course.minutes} min | {seconds} s | [![Open in Colab]({BADGE})]({editions.colab_link(name)}) |"
        )
    return "\n".join(rows)


def site():
    """Return the address where GitHub shows the repository's site."""
    owner, repository = editions.address().removeprefix("https://github.com/").split("/")
    return f"https://{owner}.github.io/{repository}/"


def filled(text):
    """Return the README's text with what stands between its marks made anew: the site's address, the course map."""
    parts = [(*SITE, f"[the course as a site]({site()})"), (BEGIN, END, f"\n{course_map()}\n")]
    for begin, end, new in parts:
        if begin not in text or end not in text:
            raise ValueError(f"README.md must hold the marks {begin!r} and {end!r}")
        text = re.sub(
            f"{re.escape(begin)}.*{re.escape(end)}", lambda _, new=f"{begin}{new}{end}": new, text, flags=re.S
        )
    return text


def main():
    """Write the README with the course map made anew."""
    path = editions.ROOT / "README.md"
    path.write_text(filled(path.read_text(encoding="utf8")), encoding="utf8")


if __name__ == "__main__":
    sys.exit(main())
