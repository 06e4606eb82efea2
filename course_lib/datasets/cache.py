"""How a data set gets into the cache folder: pooch downloads it and compares its SHA-256; it is converted once.

The cache is the folder named by the environment variable `COURSE_DATA`, else a folder in your user cache. A file gets
its name when it is complete: what an interruption leaves is never taken for data. A full cache is only read.
"""

import lzma
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

TIMEOUT = 30  # seconds of silence after which a server is given up
SOURCES = {  # file in the cache: (official address, SHA-256 of what is published there)
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
MULTI30K = {  # kept as published
    "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.fr": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.fr": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.fr": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
}
SERIES = {
    "airline-passengers.csv": "8cb51be753a718d9be5d76d7e238cc224792754676adc21faa59e954b0201621",
    "daily-min-temperatures.csv": "8b9de63ed6789492bf497625e7f9beb96a63d367b4b0a21754006f749fa5e5da",
    "monthly-sunspots.csv": "c4ec8cc57d9f6fb6ecdb3e1f37f25b6f4badd5124c55931052b0cd2fc3bc71f3",
}
SOURCES |= {
    f"multi30k/{name}.gz": (
        f"https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{name}.gz",
        sha256,
    )
    for name, sha256 in MULTI30K.items()
}
SOURCES |= {
    f"time_series/{name}": (f"https://raw.githubusercontent.com/jbrownlee/Datasets/master/{name}", sha256)
    for name, sha256 in SERIES.items()
}


class DataError(RuntimeError):
    """A data set cannot be had; the message is one sentence that says what to do."""


def cache_folder() -> Path:
    """Where the data sets are kept: `COURSE_DATA`, else a folder in the user's cache. It need not exist yet."""
    named = os.environ.get("COURSE_DATA")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "course_lib"


def download(source: str) -> Path:
    """Path of a file as published; it is downloaded if the cache has none with the right SHA-256.

    A file that was brought by another way and put at its place in the cache is as good.
    """
    import pooch  # takes a fifth of a second, and few need it
    import requests

    folder, (url, sha256) = cache_folder(), SOURCES[source]
    pooch.get_logger().setLevel("WARNING")  # it would announce each download
    registry = pooch.create(folder, base_url="", registry={source: sha256}, urls={source: url})
    try:
        if not (folder / source).is_file():
            (folder / source).parent.mkdir(parents=True, exist_ok=True)
        return Path(registry.fetch(source, downloader=pooch.HTTPDownloader(progressbar=True, timeout=TIMEOUT)))
    except ValueError as error:
        reason, cause = "what came is cut short or altered: its checksum is wrong", error
    except requests.RequestException as error:
        answer, cause = error.response, error
        # Without an answer only the kind, such as ConnectTimeout: the messages of requests fill many lines.
        reason = type(error).__name__ if answer is None else f"the server answers {answer.status_code} {answer.reason}"
    except OSError as error:
        raise unwritable(error) from error
    raise DataError(
        f"Cannot download {url} ({reason}): connect to the internet and try again, or download it by another way and "
        f"put it at {folder / source}, or set COURSE_DATA to a folder that has the data."
    ) from cause


def converted(name: str, source: str, convert: Callable[[Path, Path], None]) -> Path:
    """Path of a file in the cache that is made of a source; made if it is not there.

    Args:
        name: of the file, relative to the cache folder.
        source: one of SOURCES.
        convert: function (archive, folder) that writes this file, and perhaps others beside it, into the folder.
    """
    path = cache_folder() / name
    if path.is_file():
        return path
    archive = download(source)
    try:
        # A folder of our own, so that another process cannot meet half a file.
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=path.parent) as work:
            convert(archive, Path(work))
            for file in sorted(Path(work).iterdir()):
                os.replace(file, path.parent / file.name)
    except OSError as error:
        raise unwritable(error) from error
    return path


def write_xz(path: Path, lines: Iterable[str]):
    """Write lines of text; preset 1 takes 20 seconds for IMDB, and a third more space than the default."""
    with lzma.open(path, "wt", encoding="utf8", newline="\n", preset=1) as file:
        file.writelines(lines)


def read_xz(path: Path) -> str:
    """The text of a file that `write_xz` wrote; xz has a checksum of its own."""
    try:
        with lzma.open(path, "rt", encoding="utf8", newline="\n") as file:
            return file.read()
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise damaged(path) from error


def damaged(path: Path) -> DataError:
    """The error to raise for a file in the cache that cannot be read."""
    return DataError(f"{path} is cut short or altered: delete it and try again, and it will be made anew.")


def unwritable(error: OSError) -> DataError:
    """The error to raise when the cache cannot take a file: no room, no right, no folder."""
    return DataError(
        f"Cannot write in the cache folder {cache_folder()} ({error.strerror or error}): make room or get the right to "
        "write there, or set COURSE_DATA to another folder."
    )
