"""Real data sets, downloaded once, checked, and kept in one cache folder.

Start with the loaders: `imdb`, `multi30k`, `wikitext2`, `tiny_shakespeare`, `sunspots`,
`temperatures`, `airline_passengers`, and `docstrings`, which needs no download at all.
The second half of the file is how a file gets into the cache: it is downloaded into a folder
of its own, its SHA-256 is compared with the one written here, it is converted beside
its final place and renamed into it. So a file in the cache is always a whole one, also after
an interruption and also when two processes fetch it at once.

The cache is the folder named by the environment variable `COURSE_DATA`, else a folder in
your user cache. Whatever goes wrong raises a `DataError` that says what to do. None of the
data belongs to the course: each loader names the licence and the paper to cite.

Notebooks: 01 (series, docstrings, WikiText-2), 02 (IMDB), later chapters (the rest).
"""

import ast
import contextlib
import csv
import functools
import gzip
import hashlib
import http.client
import io
import json
import lzma
import os
import random
import re
import shutil
import socket
import ssl
import sysconfig
import tarfile
import tempfile
import time
import urllib.error
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PureWindowsPath

import torch

from course_lib.progress import progress, watched


class DataError(RuntimeError):
    """A data set cannot be had; the message is one sentence that says what to do."""


# --- text classification --------------------------------------------------------


def imdb(split: str) -> tuple[list[str], list[int] | None]:
    """Load film reviews from IMDB with their sentiment.

    Train and test hold 25,000 reviews each, half of them positive; "unsup" holds 50,000 without
    labels. There is no validation set: carve one out of train with `split_validation`. The publisher's
    files are sorted by label, so the reviews are shuffled here, always in the same way. They
    are as published: line breaks stand in them as "<br />", which `text.tokenize` removes.

    Args:
        split: "train", "test" or "unsup".

    Returns:
        texts: list of reviews.
        labels: list of 1 = positive, 0 = negative; None for "unsup".

    Raises:
        DataError: if the split is unknown, or the data cannot be had.

    Source: Maas et al. (2011), "Learning Word Vectors for Sentiment Analysis", ACL. The publisher asks for
    this citation and states no licence; the reviews belong to their authors. Notebook: 02.
    """
    _check_known("IMDB", "split", split, ("train", "test", "unsup"))
    path = _cached(f"imdb/{split}.jsonl.xz", "imdb/aclImdb_v1.tar.gz", _convert_imdb)
    try:
        rows = [json.loads(line) for line in _read_xz(path).split("\n") if line]
        # Sorting first makes the order independent of the order in which the cache was written.
        rows.sort(key=lambda row: (row.get("label", 0), row["id"]))
        random.Random(0).shuffle(rows)
        labels = None if split == "unsup" else [row["label"] for row in rows]
        return [row["text"] for row in rows], labels
    except (ValueError, KeyError) as error:
        raise _damaged(path) from error


def split_validation(n: int, fraction: float = 0.1, seed: int = 0) -> tuple[list[int], list[int]]:
    """Split n items at random into a part to train on and a part to choose models by.

    Args:
        n: number of items.
        fraction: share of the items kept for validation, between 0 and 1.
        seed: the same seed gives the same split.

    Returns:
        train: list of indices.
        valid: list of indices; every index from 0 to n - 1 is in exactly one of the two.

    Raises:
        ValueError: if one of the two parts would be empty.

    Example:
        >>> train, valid = split_validation(10, fraction=0.2)
        >>> len(train), len(valid), sorted(train + valid) == list(range(10))
        (8, 2, True)

    Notebook: 02.
    """
    size = round(n * fraction)
    if not 0 < size < n:
        raise ValueError(f"a fraction of {fraction} of {n} items leaves one part empty; both need at least one item")
    indices = list(range(n))
    random.Random(seed).shuffle(indices)
    return indices[size:], indices[:size]


# --- translation ----------------------------------------------------------------

MULTI30K_FILES = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def multi30k(split: str, languages: tuple[str, ...] = ("de", "en")) -> list[tuple[str, ...]]:
    """Load captions of photographs and their translations.

    Args:
        split: "train" (29,000 captions), "valid" (1,014) or "test" (1,000, the Flickr test set of 2016).
        languages: which of "de", "en", "fr", in the order wanted.

    Returns:
        List of tuples with one sentence in each language, as published: not tokenised, not lower-cased.

    Raises:
        DataError: if the split or a language is unknown, or the data cannot be had.

    Source: Elliott et al. (2016), "Multi30K: Multilingual English-German Image Descriptions", arXiv:1605.00459.
    The captions come from Flickr30k: for research and education only. Notebook: the chapter on sequence to sequence.
    """
    _check_known("Multi30k", "split", split, tuple(MULTI30K_FILES))
    for language in languages:
        _check_known("Multi30k", "language", language, ("de", "en", "fr"))
    columns = []
    for language in languages:
        published = _read_published(f"multi30k/{MULTI30K_FILES[split]}.{language}.gz")
        columns.append(gzip.decompress(published).decode("utf8").rstrip("\n").split("\n"))
    return list(zip(*columns, strict=True))


# --- language models ------------------------------------------------------------


def wikitext2(split: str) -> list[str]:
    """Load Wikipedia articles as words.

    Rare words are replaced by "<unk>" by the publisher; every line ends with "<eos>".

    Args:
        split: "train" (2,088,628 tokens), "valid" (217,646) or "test" (245,569).

    Returns:
        List of tokens.

    Raises:
        DataError: if the split is unknown, or the data cannot be had.

    Source: Merity et al. (2017), "Pointer Sentinel Mixture Models", arXiv:1609.07843, section 4.3. The text
    is Wikipedia's, under CC BY-SA. Notebook: 01.
    """
    _check_known("WikiText-2", "split", split, ("train", "valid", "test"))
    path = _cached(f"wikitext-2/{split}.txt.xz", "wikitext-2/wikitext-2-v1.zip", _convert_wikitext2)
    return _read_xz(path).replace("\n", " <eos> ").split()


def tiny_shakespeare() -> str:
    """Load 40,000 lines of Shakespeare as one string of 1,115,394 characters, 65 of them distinct.

    Raises:
        DataError: if the data cannot be had.

    Source: Karpathy (2015), "The Unreasonable Effectiveness of Recurrent Neural Networks". The text
    is in the public domain. Notebook: the chapters on recurrent networks and on GPT.
    """
    path = _cached("tinyshakespeare/input.txt.xz", "tinyshakespeare/input.txt", _convert_shakespeare)
    return _read_xz(path)


def shakespeare_split(text: str) -> tuple[str, str]:
    """Cut a text into its first 90 % and its last 10 %, the usual split of tiny Shakespeare.

    Args:
        text: any string.

    Returns:
        train: the first 90 % of the characters.
        valid: the rest.

    Example:
        >>> shakespeare_split("to be or not")
        ('to be or n', 'ot')

    Source: the split of nanoGPT, so that losses can be compared.
    """
    cut = int(0.9 * len(text))
    return text[:cut], text[cut:]


def docstrings(limit: int | None = None) -> str:
    """Load the docstrings of this Python's own standard library: real text on every machine.

    The modules at the top level of the library are parsed, not imported, in an order that looks random
    but is the same in every Python. The docstrings of a module stay together, so that a text cut in two shares no
    module between its parts, at most the one at the cut: functions of one module describe the same
    things in the same words. Interactive examples, repeated docstrings and those with characters
    outside ASCII are left out. All together are more than half a million characters.
    The text differs between versions of Python, and with it all numbers measured on it.

    Args:
        limit: number of characters to return; all if None. Fewer take less time.

    Returns:
        The docstrings, with an empty line between two.

    Raises:
        DataError: if this Python comes without the sources of its library.
        ValueError: if limit is not positive.

    Example:
        >>> len(docstrings(limit=1000))
        1000

    Source: the standard library, under the Python Software Foundation License. Notebooks: 01, 02.
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
            "for example data.tiny_shakespeare()."
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
    """Load the monthly number of sunspots seen from Zurich, 1749-01 to 1983-12 (2,820 months).

    Returns:
        dates: list of "year-month".
        values: (T,) float64.

    Raises:
        DataError: if the data cannot be had.

    Source: Andrews and Herzberg (1985), "Data"; Time Series Data Library. Notebook: 01.
    """
    return _time_series("time_series/monthly-sunspots.csv")


def temperatures() -> tuple[list[str], torch.Tensor]:
    """Load the daily minimum temperature in Melbourne in degrees Celsius, 1981 to 1990 (3,650 days).

    The two leap days are missing in the publisher's file.

    Returns:
        dates: list of "year-month-day".
        values: (T,) float64.

    Raises:
        DataError: if the data cannot be had.

    Source: Australian Bureau of Meteorology; Time Series Data Library. Notebook: 01.
    """
    return _time_series("time_series/daily-min-temperatures.csv")


def airline_passengers() -> tuple[list[str], torch.Tensor]:
    """Load the monthly number of international airline passengers in thousands, 1949-01 to 1960-12 (144 months).

    Returns:
        dates: list of "year-month".
        values: (T,) float64.

    Raises:
        DataError: if the data cannot be had.

    Source: Box and Jenkins (1976), "Time Series Analysis"; Time Series Data Library. Notebook: 01.
    """
    return _time_series("time_series/airline-passengers.csv")


def _time_series(name: str) -> tuple[list[str], torch.Tensor]:
    rows = list(csv.reader(io.StringIO(_read_published(name).decode("utf8"))))[1:]  # without the header
    return [date for date, _ in rows], torch.tensor([float(value) for _, value in rows], dtype=torch.float64)


# --- the cache ------------------------------------------------------------------

TIMEOUT = 30  # seconds of silence after which a server is given up
ARCHIVES = {  # file in the cache: (address, SHA-256 of what is published there)
    "imdb/aclImdb_v1.tar.gz": (
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    ),
    "wikitext-2/wikitext-2-v1.zip": (  # the first author's copy: the original address no longer answers
        "https://wikitext.smerity.com/wikitext-2-v1.zip",
        "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    ),
    "tinyshakespeare/input.txt": (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
}
PUBLISHED = {  # folders whose files are kept as published
    "multi30k": (
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/",
        {
            "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
            "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
            "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
            "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
            "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
            "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
            "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
            "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
            "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
        },
    ),
    "time_series": (
        "https://raw.githubusercontent.com/jbrownlee/Datasets/master/",
        {
            "airline-passengers.csv": "8cb51be753a718d9be5d76d7e238cc224792754676adc21faa59e954b0201621",
            "daily-min-temperatures.csv": "8b9de63ed6789492bf497625e7f9beb96a63d367b4b0a21754006f749fa5e5da",
            "monthly-sunspots.csv": "c4ec8cc57d9f6fb6ecdb3e1f37f25b6f4badd5124c55931052b0cd2fc3bc71f3",
        },
    ),
}
SOURCES = ARCHIVES | {
    f"{folder}/{name}": (address + name, sha256)
    for folder, (address, files) in PUBLISHED.items()
    for name, sha256 in files.items()
}


def cache_folder() -> Path:
    """Where the data sets are kept: `COURSE_DATA`, else a folder in the user's cache.

    Returns:
        The folder; it need not exist yet.

    Example:
        >>> cache_folder().is_absolute() or "COURSE_DATA" in os.environ
        True
    """
    named = os.environ.get("COURSE_DATA")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "course_lib"


def _cached(name: str, source: str, convert: Callable[[Path, Path], None] | None = None) -> Path:
    """Path of a file in the cache. If it is not there, its source is fetched and converted first."""
    folder = cache_folder()
    path = folder / name
    if os.path.isfile(path):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        # All work is done in a folder of our own, so that another process cannot meet half a file.
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as work:
            _fetch(source, Path(work), convert)
            for file in sorted(Path(work, "done").iterdir()):
                _publish(file, path.parent / file.name)
    except OSError as error:
        raise DataError(
            f"Cannot write in the cache folder {folder} ({error.strerror or error}): make room or get the right to "
            "write there, or set COURSE_DATA to another folder."
        ) from error
    return path


def _fetch(source: str, work: Path, convert: Callable[[Path, Path], None] | None):
    """Put what the source holds into work/done; the source is taken from the cache if the reader put it there."""
    done = work / "done"
    done.mkdir()
    if convert is None:
        _download(source, done / Path(source).name)
        return
    archive = cache_folder() / source
    if archive.is_file():
        _verify(source, archive)
    else:
        archive = work / archive.name
        _download(source, archive)
    convert(archive, done)


def _download(source: str, path: Path):
    """Download a source with torch's own downloader, which compares the checksum."""
    url, sha256 = SOURCES[source]
    way_out = f"download it by another way and put it at {cache_folder() / source}"
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # the downloader has no limit: a silent server would hold it for ever
    try:
        torch.hub.download_url_to_file(url, str(path), hash_prefix=sha256, progress=watched())
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"The server answers {error.code} ({error.reason}) to {url}: {way_out}.") from error
    except (urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"Cannot download {url} ({reason}): connect to the internet and try again, or {way_out}, "
            "or set COURSE_DATA to a folder that has the data."
        ) from error
    except RuntimeError as error:
        raise DataError(
            f"The download of {url} is incomplete or altered (its checksum is wrong): try again, or {way_out}."
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def _publish(file: Path, path: Path):
    """Move a finished file to its place in one step, after its bytes are safely on the disk."""
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())
    os.replace(file, path)


def _remove_leftovers(folder: Path):
    """Delete the working folders of processes that were killed more than a day ago."""
    for left in folder.glob(".partial-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > 24 * 3600:
                shutil.rmtree(left, ignore_errors=True)


def _verify(source: str, path: Path):
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SOURCES[source][1]:
            raise _damaged(path)


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is cut short or altered: delete it and try again, and it will be fetched anew.")


def _read_xz(path: Path) -> str:
    try:
        with lzma.open(path, "rt", encoding="utf8", newline="\n") as file:
            return file.read()
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise _damaged(path) from error


def _read_published(name: str) -> bytes:
    """The bytes of a file that is kept as published, so that its checksum can be compared at each reading."""
    path = _cached(name, name)
    _verify(name, path)
    return path.read_bytes()


def _check_known(data_set: str, what: str, given: str, known: tuple[str, ...]):
    if given not in known:
        raise DataError(f"{data_set} has no {what} {given!r}: choose one of {', '.join(known)}.")


# --- from the publishers' archives to the cache ---------------------------------


def _convert_imdb(archive: Path, folder: Path):
    """One file a review, named split/label/ID_RATING.txt -> one line a review, for each split."""
    rows = {"train": [], "test": [], "unsup": []}
    with tarfile.open(archive, "r:gz") as tar:
        for member in progress(tar, label="unpacking IMDB"):
            _check_name(member.name, archive)
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
        _write_xz(folder / f"{split}.jsonl.xz", (json.dumps(row, ensure_ascii=False) + "\n" for row in listed))


def _convert_wikitext2(archive: Path, folder: Path):
    with zipfile.ZipFile(archive) as members:
        for name in members.namelist():
            _check_name(name, archive)
        for split in ("train", "valid", "test"):
            text = members.read(f"wikitext-2/wiki.{split}.tokens").decode("utf8")
            _write_xz(folder / f"{split}.txt.xz", [text])


def _convert_shakespeare(archive: Path, folder: Path):
    _write_xz(folder / "input.txt.xz", [archive.read_text(encoding="utf8")])


def _check_name(name: str, archive: Path):
    """Members are never written under their own names; one that tries to leave the folder betrays a forged archive."""
    path = PureWindowsPath(name)  # understands both kinds of slash, and drives
    if path.anchor or ".." in path.parts:
        raise DataError(f"The archive {archive.name} holds the unsafe name {name!r}: delete it and do not use it.")


def _write_xz(path: Path, lines: Iterable[str]):
    # Preset 1: IMDB in 20 seconds, for a third more space than the default takes.
    with lzma.open(path, "wt", encoding="utf8", newline="\n", preset=1) as file:
        file.writelines(lines)
