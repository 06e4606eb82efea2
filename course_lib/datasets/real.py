"""Real data sets, each downloaded once from its official home and kept in one folder (`cache` says how).

None of the data belongs to the course: each loader names the licence and the paper to cite. Whatever goes wrong raises
a `DataError` that says what to do. `docstrings` needs no download at all.
"""

import ast
import csv
import functools
import gzip
import io
import json
import random
import re
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch
from tqdm import tqdm

from course_lib.datasets.cache import DataError, converted, damaged, download, read_xz, write_xz

# --- text classification --------------------------------------------------------


def imdb(split: str) -> tuple[list[str], list[int] | None]:
    """Film reviews from IMDB with their sentiment: texts, and labels 1 = positive, 0 = negative (None for "unsup").

    "train" and "test" hold 25,000 reviews each, half of them positive, "unsup" 50,000 without labels. There is no
    validation set: carve one out of train with `split_validation`. The publisher's files are sorted by label, so the
    reviews are shuffled here, always in the same way. Line breaks stand in them as "<br />".

    Source: Maas et al. (2011), "Learning Word Vectors for Sentiment Analysis", ACL. The publisher asks for this
    citation and states no licence; the reviews belong to their authors.
    """
    _check_known("IMDB", "split", split, ("train", "test", "unsup"))
    path = converted(f"imdb/{split}.jsonl.xz", "imdb/aclImdb_v1.tar.gz", _convert_imdb)
    try:
        rows = [json.loads(line) for line in read_xz(path).split("\n") if line]
        # Sorting first makes the order independent of the order in which the cache was written.
        rows.sort(key=lambda row: (row.get("label", 0), row["id"]))
        random.Random(0).shuffle(rows)
        labels = None if split == "unsup" else [row["label"] for row in rows]
        return [row["text"] for row in rows], labels
    except (ValueError, KeyError) as error:
        raise damaged(path) from error


def split_validation(n: int, fraction: float = 0.1, seed: int = 0) -> tuple[list[int], list[int]]:
    """Indices of a part to train on and of a part to choose models by, together all of 0 .. n - 1, at random.

    >>> train, valid = split_validation(10, fraction=0.2)
    >>> len(train), len(valid), sorted(train + valid) == list(range(10))
    (8, 2, True)
    """
    if not isinstance(n, int) or not isinstance(seed, int) or not (isinstance(fraction, float) and 0 <= fraction <= 1):
        raise ValueError(f"wanted whole numbers and a fraction from 0 to 1, got {n=}, {fraction=}, {seed=}")
    size = round(n * fraction)
    if not 0 < size < n:
        raise ValueError(f"a fraction of {fraction} of {n} items leaves one part empty; both need at least one item")
    indices = list(range(n))
    random.Random(seed).shuffle(indices)
    return indices[size:], indices[:size]


# --- translation ----------------------------------------------------------------

MULTI30K_FILES = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def multi30k(split: str, languages: tuple[str, ...] = ("de", "en")) -> list[tuple[str, ...]]:
    """Captions of photographs and their translations: tuples with one sentence in each language, as published.

    Args:
        split: "train" (29,000 captions), "valid" (1,014) or "test" (1,000, the Flickr test set of 2016).
        languages: which of "de", "en", "fr", in the order wanted.

    Source: Elliott et al. (2016), "Multi30K: Multilingual English-German Image Descriptions", arXiv:1605.00459. The
    captions come from Flickr30k: for research and education only.
    """
    _check_known("Multi30k", "split", split, tuple(MULTI30K_FILES))
    for language in languages:
        _check_known("Multi30k", "language", language, ("de", "en", "fr"))
    columns = []
    for language in languages:
        path = download(f"multi30k/{MULTI30K_FILES[split]}.{language}.gz")
        columns.append(gzip.decompress(path.read_bytes()).decode("utf8").rstrip("\n").split("\n"))
    return list(zip(*columns, strict=True))


# --- language models ------------------------------------------------------------


def wikitext2(split: str) -> list[str]:
    """Wikipedia articles as words: "train" has 2,088,628 tokens, "valid" 217,646, "test" 245,569.

    Rare words are replaced by "<unk>" by the publisher; every line ends with "<eos>".

    Source: Merity et al. (2017), "Pointer Sentinel Mixture Models", arXiv:1609.07843, section 4.3. The text is
    Wikipedia's, under CC BY-SA.
    """
    _check_known("WikiText-2", "split", split, ("train", "valid", "test"))
    path = converted(f"wikitext-2/{split}.txt.xz", "wikitext-2/wikitext-2-v1.zip", _convert_wikitext2)
    return read_xz(path).replace("\n", " <eos> ").split()


def tiny_shakespeare() -> str:
    """40,000 lines of Shakespeare as one string of 1,115,394 characters, 65 of them distinct.

    Source: Karpathy (2015), "The Unreasonable Effectiveness of Recurrent Neural Networks". Public domain.
    """
    path = converted("tinyshakespeare/input.txt.xz", "tinyshakespeare/input.txt", _convert_shakespeare)
    return read_xz(path)


def shakespeare_split(text: str) -> tuple[str, str]:
    """The first 90 % and the last 10 % of a text: nanoGPT's split of tiny Shakespeare, so that losses can be compared.

    >>> shakespeare_split("to be or not")
    ('to be or n', 'ot')
    """
    if not isinstance(text, str):
        raise ValueError(f"text must be one string, got {type(text).__name__}")
    cut = int(0.9 * len(text))
    return text[:cut], text[cut:]


def docstrings(limit: int | None = None) -> str:
    """The docstrings of this Python's own standard library: real text on every machine, half a million characters.

    The modules are parsed, not imported, in an order that looks random but is the same in every Python. The docstrings
    of a module stay together: whoever cuts the text in two shares no module between the parts, at most the one at the
    cut. Examples, repeated docstrings and those with characters outside ASCII are left out. The text differs between
    versions of Python, and with it all numbers measured on it.

    Args:
        limit: number of characters to return; all if None. Fewer take less time.

    >>> len(docstrings(limit=1000))
    1000

    Source: the standard library, under the Python Software Foundation License.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 character, got {limit}")
    library = Path(sysconfig.get_path("stdlib"))
    names = sorted({path.stem for path in library.glob("[a-z]*.py")} - {"sitecustomize"} | set(_MOVED))
    random.Random(0).shuffle(names)
    paths = [path for name in names for path in (library / f"{name}.py", library / name / "__init__.py")]
    found, size = {}, 0  # a dict keeps one of each, in order
    for path in filter(Path.exists, paths):
        for text in _module_docstrings(path):
            size += len(text) + 2 if text not in found else 0
            found[text] = True
        if limit is not None and size >= limit:
            break
    if not found:
        raise DataError(
            f"This Python has no library sources in {library}: use a Python that has them, or another text, "
            "for example tiny_shakespeare()."
        )
    return ("\n\n".join(found) + "\n\n")[:limit]


# Modules that later Pythons than 3.11 dropped or made packages: they keep their places, so that all have one order.
_MOVED = (
    "aifc asynchat asyncore cgi cgitb chunk crypt imghdr imp mailcap nntplib pathlib pipes smtpd sndhdr sunau "
    "sysconfig telnetlib uu xdrlib zipfile"
).split()


@functools.cache
def _module_docstrings(path: Path) -> list[str]:
    """The docstrings of a module that can be read as text; kept, because parsing all modules takes a second."""
    kept = []
    for text in _docstrings_in(ast.parse(path.read_bytes())):
        text = re.sub(r"^ *>>>.*(\n.*\S.*)*", "", text, flags=re.MULTILINE)  # an example and its output
        text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)).strip()
        if text and text.isascii():
            kept.append(text)
    return kept


def _docstrings_in(node: ast.AST) -> Iterable[str]:
    """The docstrings of a module, its classes and its functions, in the order of the file."""
    yield ast.get_docstring(node) or ""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings_in(child)


# --- time series ----------------------------------------------------------------


def sunspots() -> tuple[list[str], torch.Tensor]:
    """Monthly number of sunspots seen from Zurich, 1749-01 to 1983-12: dates, and (2820,) float64.

    Source: Andrews and Herzberg (1985), "Data"; Time Series Data Library.
    """
    return _time_series("time_series/monthly-sunspots.csv")


def temperatures() -> tuple[list[str], torch.Tensor]:
    """Daily minimum temperature in Melbourne in degrees Celsius, 1981 to 1990: dates, and (3650,) float64.

    The two leap days are missing in the publisher's file.

    Source: Australian Bureau of Meteorology; Time Series Data Library.
    """
    return _time_series("time_series/daily-min-temperatures.csv")


def airline_passengers() -> tuple[list[str], torch.Tensor]:
    """Monthly number of international airline passengers in thousands, 1949 to 1960: dates, and (144,) float64.

    Source: Box and Jenkins (1976), "Time Series Analysis"; Time Series Data Library.
    """
    return _time_series("time_series/airline-passengers.csv")


def _time_series(name: str) -> tuple[list[str], torch.Tensor]:
    rows = list(csv.reader(io.StringIO(download(name).read_text(encoding="utf8"))))[1:]  # without the header
    return [date for date, _ in rows], torch.tensor([float(value) for _, value in rows], dtype=torch.float64)


def _check_known(data_set: str, what: str, given: str, known: Iterable[str]):
    if given not in known:
        raise DataError(f"{data_set} has no {what} {given!r}: choose one of {', '.join(known)}.")


# --- from the publishers' archives to the cache ---------------------------------


def _convert_imdb(archive: Path, folder: Path):
    """One file a review, named split/label/ID_RATING.txt -> one line a review, for each split."""
    rows = {"train": [], "test": [], "unsup": []}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tqdm(tar, desc="unpacking IMDB", unit=" files", leave=False):
            review = re.fullmatch(r"aclImdb/(train|test)/(pos|neg|unsup)/(\d+)_(\d+)\.txt", member.name)
            if not (review and member.isfile()):
                continue
            split, label, number, rating = review.groups()
            row = {"id": int(number), "text": tar.extractfile(member).read().decode("utf8")}
            if label == "unsup":
                rows["unsup"].append(row)
            else:
                rows[split].append(row | {"label": int(label == "pos"), "rating": int(rating)})
    for split, listed in rows.items():
        write_xz(folder / f"{split}.jsonl.xz", (json.dumps(row, ensure_ascii=False) + "\n" for row in listed))


def _convert_wikitext2(archive: Path, folder: Path):
    with zipfile.ZipFile(archive) as members:
        for split in ("train", "valid", "test"):
            text = members.read(f"wikitext-2/wiki.{split}.tokens").decode("utf8")
            write_xz(folder / f"{split}.txt.xz", [text])


def _convert_shakespeare(archive: Path, folder: Path):
    write_xz(folder / "input.txt.xz", [archive.read_text(encoding="utf8")])
