"""The way into the cache, with miniature archives served on loopback, and everything that can go wrong on it."""

import errno
import gc
import gzip
import hashlib
import io
import json
import lzma
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import warnings
import zipfile
from pathlib import Path

import pooch
import pytest
import torch

from course_lib.datasets import cache as cache_module
from course_lib.datasets import real as data
from tests.helpers import serve

# --- miniature archives ---------------------------------------------------------

REVIEWS = {
    "aclImdb/README": "read me",
    "aclImdb/train/labeledBow.feat": "0 9:1",
    "aclImdb/train/neg/0_3.txt": "dull .",
    "aclImdb/train/neg/10_1.txt": "Awful, “truly” awful.\u2028No line ends here.",
    "aclImdb/train/pos/0_9.txt": "Lovely!<br />Go.",
    "aclImdb/train/pos/2_10.txt": "great",
    "aclImdb/train/unsup/7_0.txt": "who knows",
    "aclImdb/test/pos/1_7.txt": "fine",
    "aclImdb/test/neg/1_2.txt": "poor",
}
WIKI = {
    "wikitext-2/wiki.train.tokens": " \n = A title = \n one <unk> two \n",
    "wikitext-2/wiki.valid.tokens": " three \n",
    "wikitext-2/wiki.test.tokens": " four – 4 \n \n",
}


def tar_gz(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in members.items():
            body = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def sha256(body):
    return hashlib.sha256(body).hexdigest()


IMDB = "imdb/aclImdb_v1.tar.gz"
WIKITEXT = "wikitext-2/wikitext-2-v1.zip"
SHAKESPEARE = "tinyshakespeare/input.txt"
GERMAN, ENGLISH = "multi30k/val.de.gz", "multi30k/val.en.gz"
SUNSPOTS = "time_series/monthly-sunspots.csv"
BODIES = {
    IMDB: tar_gz(REVIEWS),
    WIKITEXT: zipped(WIKI),
    SHAKESPEARE: b"First Citizen:\nSpeak, speak.\n",
    GERMAN: gzip.compress("Zwei M\u00e4nner.\nEin Hund\u0085 .\n".encode()),
    ENGLISH: gzip.compress(b"Two men.\nA dog .\n"),
    SUNSPOTS: b'"Month","Sunspots"\r\n"1749-01",58.0\r\n"1749-02",62.6\r\n"1749-03",70\r\n',
}


@pytest.fixture(scope="module", autouse=True)
def _quick_collections():
    gc.collect()
    gc.freeze()  # what other tests have loaded need not be looked at again
    yield
    gc.unfreeze()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("COURSE_DATA", str(folder))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    return folder


@pytest.fixture
def server(cache, monkeypatch):
    """A server that has every miniature archive, and the addresses and checksums that go with it."""
    with serve.serving() as server:
        for source, body in BODIES.items():
            server.routes["/" + source] = body
            monkeypatch.setitem(cache_module.SOURCES, source, (server.url("/" + source), sha256(body)))
        yield server


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- what the loaders give ------------------------------------------------------


def test_imdb_from_the_archive(server, cache):
    # Fails if a label or a rating is mixed up, a file that is no review is taken for one, text is changed on the
    # way through the cache (a line separator, a non-ASCII quote), or the second call downloads again.
    texts, labels = data.imdb("train")
    assert dict(zip(texts, labels, strict=True)) == {
        "dull .": 0,
        "Awful, “truly” awful.\u2028No line ends here.": 0,
        "Lovely!<br />Go.": 1,
        "great": 1,
    }
    assert data.imdb("unsup") == (["who knows"], None)
    texts, labels = data.imdb("test")
    assert dict(zip(texts, labels, strict=True)) == {"fine": 1, "poor": 0}
    assert server.requests == ["/" + IMDB]
    assert files_in(cache) == [IMDB, "imdb/test.jsonl.xz", "imdb/train.jsonl.xz", "imdb/unsup.jsonl.xz"]
    rows = [json.loads(line) for line in lzma.open(cache / "imdb/test.jsonl.xz", "rt", encoding="utf8")]
    assert {"id": 1, "label": 1, "rating": 7, "text": "fine"} in rows


def test_imdb_is_shuffled_and_does_not_depend_on_the_order_of_the_cache(cache):
    # Fails if the reviews come sorted by label, or if two caches with the same rows give two orders.
    rows = [{"id": i, "label": label, "rating": 1, "text": f"{label}-{i}"} for label in (0, 1) for i in range(50)]
    orders = []
    for listed in (rows, rows[::-1]):
        (cache / "imdb").mkdir(parents=True, exist_ok=True)
        with lzma.open(cache / "imdb/train.jsonl.xz", "wt") as file:
            file.writelines(json.dumps(row) + "\n" for row in listed)
        orders.append(data.imdb("train"))
    assert orders[0] == orders[1]
    texts, labels = orders[0]
    assert [int(text[0]) for text in texts] == labels
    assert 10 < sum(labels[:50]) < 40


def test_wikitext2(server, cache):
    # Fails if an empty line has no <eos>, or a split reads another's file.
    assert data.wikitext2("train") == "<eos> = A title = <eos> one <unk> two <eos>".split()
    assert data.wikitext2("valid") == ["three", "<eos>"]
    assert data.wikitext2("test") == ["four", "–", "4", "<eos>", "<eos>"]
    assert server.requests == ["/" + WIKITEXT]
    assert files_in(cache) == [f"wikitext-2/{split}.txt.xz" for split in ("test", "train", "valid")] + [WIKITEXT]


def test_tiny_shakespeare(server, cache):
    # Fails if line ends or characters change on the way through the cache.
    assert data.tiny_shakespeare() == "First Citizen:\nSpeak, speak.\n"
    assert files_in(cache) == [SHAKESPEARE, "tinyshakespeare/input.txt.xz"]
    train, valid = data.shakespeare_split("x" * 25 + "abc")
    assert (train, valid) == ("x" * 25, "abc")


def test_multi30k(server, cache):
    # Fails if the languages are swapped, or if a line is cut at a character that is no line end (U+0085).
    wanted = [("Zwei Männer.", "Two men."), ("Ein Hund\u0085 .", "A dog .")]
    assert data.multi30k("valid") == wanted
    assert data.multi30k("valid", ("en", "de")) == [(english, german) for german, english in wanted]
    assert files_in(cache) == [GERMAN, ENGLISH]
    assert (cache / GERMAN).read_bytes() == BODIES[GERMAN]


def test_time_series(server):
    # Fails if the header is taken for a value, or if a value is rounded to float32.
    dates, values = data.sunspots()
    assert dates == ["1749-01", "1749-02", "1749-03"]
    assert torch.equal(values, torch.tensor([58.0, 62.6, 70.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.imdb("valid"), "IMDB has no split 'valid': choose one of train, test, unsup."),
        (lambda: data.wikitext2("dev"), "WikiText-2 has no split 'dev': choose one of train, valid, test."),
        (lambda: data.multi30k("val"), "Multi30k has no split 'val': choose one of train, valid, test."),
        (lambda: data.multi30k("test", ("de", "es")), "Multi30k has no language 'es': choose one of de, en, fr."),
    ],
)
def test_an_unknown_split_or_language_is_named(server, call, message):
    # Fails if an unknown name starts a download, or if the message does not say which names there are.
    with pytest.raises(cache_module.DataError) as caught:
        call()
    assert str(caught.value) == message
    assert server.requests == []


def test_every_address_is_https_with_a_full_checksum():
    # Fails if a checksum is cut or a file is listed without one; a short prefix would let altered files through.
    for name, (url, checksum) in cache_module.SOURCES.items():
        assert url.startswith("https://")
        assert url.rsplit("/", 1)[1] == name.rsplit("/", 1)[1]
        assert len(checksum) == 64
        assert int(checksum, 16)
    assert len(cache_module.SOURCES) == 3 + 9 + 3


# --- the cache folder -----------------------------------------------------------


def test_cache_folder(monkeypatch):
    # Fails if COURSE_DATA is ignored, or if "~" is taken for the name of a folder.
    monkeypatch.setenv("HOME", "/somewhere/reader")
    monkeypatch.setenv("COURSE_DATA", "~/texts")
    assert cache_module.cache_folder() == Path("/somewhere/reader/texts")
    monkeypatch.setenv("COURSE_DATA", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_module.cache_folder() == Path("/somewhere/reader/.cache/course_lib")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/mine")
    assert cache_module.cache_folder() == Path("/var/tmp/mine/course_lib")


def test_a_filled_cache_is_only_read(server, cache, monkeypatch):
    # Fails if a loader writes in a cache that has everything: a shared cache is read-only.
    data.wikitext2("valid")
    data.sunspots()
    server.routes.clear()

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    for module, name in ((os, "mkdir"), (os, "replace"), (tempfile, "NamedTemporaryFile")):
        monkeypatch.setattr(module, name, refuse)
    assert data.wikitext2("valid") == ["three", "<eos>"]
    assert len(data.sunspots()[0]) == 3


def test_an_archive_put_there_by_hand_is_used_and_kept(server, cache):
    # Fails if the way out that the messages name does not work.
    (cache / "imdb").mkdir(parents=True)
    (cache / IMDB).write_bytes(BODIES[IMDB])
    (cache / "multi30k").mkdir()
    for name in (GERMAN, ENGLISH):
        (cache / name).write_bytes(BODIES[name])
    assert data.imdb("unsup") == (["who knows"], None)
    assert len(data.multi30k("valid")) == 2
    assert server.requests == []
    assert IMDB in files_in(cache)


def test_an_altered_archive_put_there_by_hand_is_replaced(server, cache):
    # Fails if only downloads are compared with the checksum.
    (cache / "imdb").mkdir(parents=True)
    (cache / IMDB).write_bytes(tar_gz(REVIEWS | {"aclImdb/train/pos/0_9.txt": "forged"}))
    assert "forged" not in data.imdb("train")[0]
    assert server.requests == ["/" + IMDB]
    assert (cache / IMDB).read_bytes() == BODIES[IMDB]


# --- downloads that go wrong ----------------------------------------------------


def failure(call):
    """The message of the DataError that the call must raise; one sentence, hence one line."""
    with pytest.raises(cache_module.DataError) as caught:
        call()
    message = str(caught.value)
    with warnings.catch_warnings():  # pooch leaves the connection of a failed download to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        del caught
        gc.collect()
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_offline(cache, monkeypatch):
    # Fails if the reader is not told the address, the place for the file, and the variable. Nobody listens on the port.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/aclImdb_v1.tar.gz"
        monkeypatch.setitem(cache_module.SOURCES, IMDB, (url, "0" * 64))
        message = failure(lambda: data.imdb("train"))
    assert message.startswith(f"Cannot download {url} (")
    assert f"put it at {cache / IMDB}, or set COURSE_DATA to a folder that has the data." in message
    assert files_in(cache) == []


def test_not_found(server, cache):
    # Fails if a 404 is reported as being offline, or if the error page is kept as data.
    del server.routes["/" + SUNSPOTS]
    message = failure(data.sunspots)
    assert message.startswith(f"Cannot download {server.url('/' + SUNSPOTS)} (the server answers 404 Not Found): ")
    assert str(cache / SUNSPOTS) in message
    assert files_in(cache) == []


@pytest.mark.parametrize("source", [IMDB, WIKITEXT, SHAKESPEARE, SUNSPOTS])
@pytest.mark.parametrize("fault", ["truncated", "altered"])
def test_truncated_and_altered_downloads(server, cache, source, fault):
    # Fails if half a file or another file gets into the cache, or if a later good download is not used.
    body = BODIES[source]
    server.routes["/" + source] = serve.truncated(body) if fault == "truncated" else body[:-1] + b"!"
    call = {IMDB: lambda: data.imdb("test"), WIKITEXT: lambda: data.wikitext2("test")}.get(source)
    call = call or (data.sunspots if source == SUNSPOTS else data.tiny_shakespeare)
    message = failure(call)
    reason = {
        "truncated": "ChunkedEncodingError",
        "altered": "what came is cut short or altered: its checksum is wrong",
    }
    assert message.startswith(f"Cannot download {server.url('/' + source)} ({reason[fault]}): connect to the internet")
    assert str(cache / source) in message
    assert files_in(cache) == []
    server.routes["/" + source] = body
    call()


def test_a_silent_server_is_given_up(server, cache, monkeypatch):
    # Fails (by hanging) if there is no limit of time.
    monkeypatch.setattr(cache_module, "TIMEOUT", 0.3)
    server.routes["/" + IMDB] = serve.stalled(BODIES[IMDB], threading.Event())
    assert "(ConnectionError)" in failure(lambda: data.imdb("train"))
    assert files_in(cache) == []


# --- a folder that cannot be written in -----------------------------------------


@pytest.mark.parametrize("where", ["downloading", "converting", "saving"])
def test_a_full_disk(server, cache, monkeypatch, where):
    # Fails if the error of the disk is taken for one of the network, or if half a file stays.
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    target, name = {
        "downloading": (pooch.HTTPDownloader, "__call__"),
        "converting": (data, "write_xz"),
        "saving": (os, "replace"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(target, name, full)
        message = failure(lambda: data.imdb("train"))
    assert message == (
        f"Cannot write in the cache folder {cache} (No space left on device): make room or get the right to write "
        "there, or set COURSE_DATA to another folder."
    )
    assert [name for name in files_in(cache) if name != IMDB] == []
    assert len(data.imdb("train")[0]) == 4


def test_a_file_in_place_of_the_folder(server, cache):
    # Fails if COURSE_DATA that names a file ends in a traceback.
    cache.write_text("not a folder")
    assert failure(lambda: data.imdb("train")).startswith(f"Cannot write in the cache folder {cache} (")


def test_a_read_only_folder(server, cache, monkeypatch):
    # Fails if missing rights end in a traceback. Rights are taken by hand because they do not bind the root user.
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    cache.mkdir()
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    message = failure(lambda: data.imdb("train"))
    assert message.startswith(f"Cannot write in the cache folder {cache} (")
    assert "Permission denied" in message


# --- damage in the cache --------------------------------------------------------


def spoil(path, damage):
    """Cut a file, empty it, change one bit, or put a page of another server in its place."""
    body = path.read_bytes()
    middle = len(body) // 2
    path.write_bytes(
        {
            "cut": body[:-9],
            "empty": b"",
            "flipped": body[:middle] + bytes([body[middle] ^ 4]) + body[middle + 1 :],
            "other": b"<html>log in</html>",
        }[damage]
    )


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "other"])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("imdb/train.jsonl.xz", lambda: data.imdb("train")),
        ("wikitext-2/valid.txt.xz", lambda: data.wikitext2("valid")),
        ("tinyshakespeare/input.txt.xz", data.tiny_shakespeare),
    ],
)
def test_damage_in_the_cache_is_found(server, cache, name, call, damage):
    # Fails if a file that is cut, emptied, changed in one bit, or replaced gives fewer or other rows in silence.
    before = call()
    path = cache / name
    spoil(path, damage)
    message = failure(call)
    assert message == f"{path} is cut short or altered: delete it and try again, and it will be made anew."
    path.unlink()
    assert str(call()) == str(before)


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "other"])
@pytest.mark.parametrize(("name", "call"), [(GERMAN, lambda: data.multi30k("valid")), (SUNSPOTS, data.sunspots)])
def test_a_published_file_that_is_damaged_in_the_cache_is_fetched_again(server, cache, name, call, damage):
    # Fails if the checksum is compared after a download only, or if the message hides that there is no connection.
    before = call()
    spoil(cache / name, damage)
    assert str(call()) == str(before)
    assert server.requests.count("/" + name) == 2
    spoil(cache / name, damage)
    del server.routes["/" + name]
    assert failure(call).startswith(f"Cannot download {server.url('/' + name)} (the server answers 404")


def test_rows_that_are_no_reviews(cache):
    # Fails if a file that unpacks well but holds something else ends in a KeyError.
    (cache / "imdb").mkdir(parents=True)
    for row in ("not json", '{"text": "no id"}'):
        with lzma.open(cache / "imdb/train.jsonl.xz", "wt") as file:
            file.write(row + "\n")
        assert "is cut short or altered" in failure(lambda: data.imdb("train"))


# --- other processes ------------------------------------------------------------

CHILD = """
import sys
from course_lib.datasets import cache, real as data
from tests.helpers import serve
cache.SOURCES["imdb/aclImdb_v1.tar.gz"] = tuple(sys.argv[1:3])
texts, labels = data.imdb("train")
print(len(texts), sum(labels))
"""


def start_child(server):
    command = [sys.executable, "-c", CHILD, *cache_module.SOURCES[IMDB]]
    environment = os.environ | {"PYTHONPATH": str(Path(data.__file__).parents[1]), "TQDM_DISABLE": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_download_leaves_nothing_that_is_taken_for_whole(server, cache):
    # Fails if half a file has the final name, or if the next call stumbles over what the killed process left.
    sent = threading.Event()
    server.routes["/" + IMDB] = serve.stalled(BODIES[IMDB], sent)
    with start_child(server) as child:
        assert sent.wait(60)
        child.kill()
        child.communicate()
    assert all(Path(name).name.startswith("tmp") for name in files_in(cache))
    server.routes["/" + IMDB] = BODIES[IMDB]
    assert len(data.imdb("train")[0]) == 4


def test_two_processes_at_once_do_not_spoil_each_other(server, cache):
    # Fails if they share a file: the server sends the archive only when both are downloading it.
    server.routes["/" + IMDB] = serve.together(BODIES[IMDB], 2)
    with start_child(server) as one, start_child(server) as other:
        outputs = [child.communicate(timeout=120) for child in (one, other)]
    assert outputs == [("4 2\n", ""), ("4 2\n", "")]
    assert server.requests == ["/" + IMDB] * 2
    assert files_in(cache) == [IMDB, "imdb/test.jsonl.xz", "imdb/train.jsonl.xz", "imdb/unsup.jsonl.xz"]


# --- text without a download ----------------------------------------------------


def test_docstrings_of_a_small_library(tmp_path, monkeypatch):
    # Fails if code, examples, repeated or non-ASCII docstrings get into the text, or a nested one is missed.
    (tmp_path / "one.py").write_text(
        '"""First module.   \n\n\n\nSecond paragraph."""\n'
        'class A:\n    """A class."""\n    async def f(self):\n        """Inner.\n\n'
        '        >>> 1 + 1\n        2\n\n        After."""\n        x = """no docstring"""\n'
    )
    (tmp_path / "two.py").write_text('def g():\n    """A class."""\ndef h():\n    """Na\u00efve."""\n', encoding="utf8")
    (tmp_path / "_private.py").write_text('"""Not read."""')
    monkeypatch.setattr(data.sysconfig, "get_path", lambda _: str(tmp_path))
    pieces = {"First module.\n\nSecond paragraph.", "A class.", "Inner.\n\nAfter."}
    text = data.docstrings()
    rest = text
    for piece in pieces:
        assert piece in rest
        rest = rest.replace(piece, "")
    assert rest.strip("\n") == ""
    assert text == data.docstrings()


def test_docstrings_of_a_module_stay_together(tmp_path, monkeypatch):
    # Fails if docstrings are mixed across modules: then both parts of a cut text would know every module.
    for name in "abcdefg":
        (tmp_path / f"{name}.py").write_text("\n".join(f'def f{i}():\n    """{name}{i}"""' for i in range(3)))
    monkeypatch.setattr(data.sysconfig, "get_path", lambda _: str(tmp_path))
    pieces = data.docstrings().split()
    assert sorted(pieces) == [f"{name}{i}" for name in "abcdefg" for i in range(3)]
    assert [piece[1] for piece in pieces] == ["0", "1", "2"] * 7
    assert [piece[0] for piece in pieces[::3]] != list("abcdefg")  # but the modules are shuffled


def test_docstrings_come_in_one_order_whatever_modules_there_are(tmp_path, monkeypatch):
    # Fails if a module that another Python lacks or has as a package, or that a distribution adds, moves the others:
    # then the end of a cut text, which the chapters hold out, would be other modules.
    names = ["abc", "aifc", "bdb", "cgi", "dis", "glob", "pathlib", "pdb", "sysconfig", "zipfile"]
    (tmp_path / "old").mkdir()
    for name in names:
        (tmp_path / "old" / f"{name}.py").write_text(f'"""{name}"""')
    for name in ("abc", "bdb", "dis", "glob", "pathlib/__init__", "pdb", "sysconfig", "zipfile/__init__"):
        path = tmp_path / "new" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""{name.removesuffix("/__init__")}"""')
    (tmp_path / "new" / "sitecustomize.py").write_text('"""of this machine"""')
    monkeypatch.setattr(data.sysconfig, "get_path", lambda _: str(tmp_path / "old"))
    old = data.docstrings().split()
    monkeypatch.setattr(data.sysconfig, "get_path", lambda _: str(tmp_path / "new"))
    assert sorted(old) == names
    assert data.docstrings().split() == [name for name in old if name not in ("aifc", "cgi")]


def test_docstrings_of_this_python():
    # Fails if a version of Python gives too little text, or text that is no plain ASCII prose.
    text = data.docstrings()
    assert len(text) > 500_000
    assert text.isascii()
    assert ">>>" not in text
    assert len(set(text)) < 100
    assert data.docstrings(limit=777) == text[:777]
    with pytest.raises(ValueError, match="limit must be at least 1 character, got 0"):
        data.docstrings(limit=0)


def test_a_python_without_sources(tmp_path, monkeypatch):
    # Fails if an empty text is returned where the library is packed away.
    monkeypatch.setattr(data.sysconfig, "get_path", lambda _: str(tmp_path / "nowhere"))
    assert "This Python has no library sources in" in failure(data.docstrings)


# --- splits ---------------------------------------------------------------------


def test_split_validation():
    # Fails if an index is lost or doubled, if the parts are swapped, or if the split is not random or not repeatable.
    train, valid = data.split_validation(1000, fraction=0.15, seed=1)
    assert (len(train), len(valid)) == (850, 150)
    assert sorted(train + valid) == list(range(1000))
    assert (train, valid) == data.split_validation(1000, fraction=0.15, seed=1)
    assert valid != data.split_validation(1000, fraction=0.15, seed=2)[1]
    assert 400 < sum(valid) / len(valid) < 600


@pytest.mark.parametrize(("n", "fraction"), [(10, 0.0), (10, 1.0), (10, 1.5), (4, 0.1), (0, 0.5), (10, -0.1)])
def test_a_split_with_an_empty_part_is_refused(n, fraction):
    # Fails if a model could be chosen on no data at all.
    with pytest.raises(ValueError, match=f"a fraction.*{fraction}.*(one part empty|seed=0)"):
        data.split_validation(n, fraction)


# --- the real data --------------------------------------------------------------

needs_data = pytest.mark.skipif("COURSE_DATA" not in os.environ, reason="set COURSE_DATA to a folder with the data")


@needs_data
def test_numbers_of_rows_of_the_real_data():
    # Fails if a loader drops or splits rows; the numbers are the publishers'.
    for split, number in (("train", 25_000), ("test", 25_000)):
        texts, labels = data.imdb(split)
        assert (len(texts), len(labels), sum(labels)) == (number, number, number // 2)
    assert len(data.imdb("unsup")[0]) == 50_000
    for split, number in (("train", 29_000), ("valid", 1_014), ("test", 1_000)):
        assert len(data.multi30k(split, ("de", "en", "fr"))) == number
    for split, number in (("train", 2_088_628), ("valid", 217_646), ("test", 245_569)):
        assert len(data.wikitext2(split)) == number
    text = data.tiny_shakespeare()
    assert (len(text), len(set(text))) == (1_115_394, 65)
    for load, number in ((data.airline_passengers, 144), (data.temperatures, 3_650), (data.sunspots, 2_820)):
        dates, values = load()
        assert len(dates) == len(values) == number
        assert values.isfinite().all()
