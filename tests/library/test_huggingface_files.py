"""Checkpoints written, read, damaged and forged; tokenizers against transformers and against their definitions."""

import http.server
import json
import lzma
import os
import pickle
import subprocess
import sys
import threading
import unicodedata
from itertools import pairwise
from pathlib import Path

import huggingface_hub
import pytest
import regex
import tokenizers
import torch
from huggingface_hub import errors
from safetensors.torch import save_file
from torch import nn

from course_lib import datasets
from course_lib.datasets import DataError
from course_lib.utils import huggingface
from course_lib.utils.huggingface import CONFIG, INDEX, WEIGHTS, check_config, load, read, save, tokenizer
from tests.helpers.huggingface import reference

SIZES = {"n_embd": 3, "model_type": "gpt2"}


def some_tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator) for name, shape in {"a.x": (2, 3), "a.y": (5,), "b": ()}.items()
    }


def equal(found, wanted):
    """Same names, dtypes and numbers."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    return True


@pytest.fixture
def folder(tmp_path):
    """A whole checkpoint."""
    save(tmp_path / "model", SIZES, some_tensors())
    return tmp_path / "model"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(source, name):
        raise AssertionError(f"asked the hub for {name} of {source}")

    monkeypatch.setattr(huggingface, "_download", refuse)


# --- checkpoints ----------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, Path])
def test_what_is_saved_is_read(folder, kind, no_network):
    """Fails if a name, a number, a shape or a size is lost, or a local folder is looked for on the hub."""
    config, tensors = read(kind(folder))
    assert config == SIZES
    assert equal(tensors, some_tensors())


def test_transformers_reads_what_is_saved(tmp_path):
    """Fails if transformers cannot open the file, or finds other numbers in it."""
    config = reference().GPT2Config(n_embd=6, n_layer=1, n_head=2, vocab_size=11, n_positions=7)
    model = reference().GPT2LMHeadModel(config)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save(tmp_path, config.to_dict(), tensors)
    again = reference().GPT2LMHeadModel.from_pretrained(tmp_path)
    assert equal(again.state_dict(), model.state_dict())


def test_parts_of_one_storage_are_saved_apart(tmp_path):
    """Fails if views (a transposed weight, a third of a packed one, one tensor twice) are refused or mixed up."""
    packed = torch.arange(18.0).view(6, 3)
    tensors = {"q": packed[:2], "t": packed.T, "again": packed, "parameter": nn.Parameter(packed[2:4])}
    save(tmp_path, {}, tensors)
    assert equal(read(tmp_path)[1], {name: tensor.detach() for name, tensor in tensors.items()})


def test_saving_over_a_checkpoint_that_is_in_use(folder):
    """Fails if the old file is overwritten in place: the tensors that were read may still lie in it."""
    _, tensors = read(folder)
    save(folder, {"n_embd": 4}, {"c": torch.ones(100)})
    assert equal(tensors, some_tensors())
    assert read(folder)[0] == {"n_embd": 4}
    assert sorted(os.listdir(folder)) == [CONFIG, WEIGHTS]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits_become_float32(tmp_path, dtype):
    """Fails if half precision stays, a number changes, or float64 and whole numbers are touched."""
    half = torch.linspace(-3, 3, 7).to(dtype)
    others = {"double": torch.full((2,), 1 / 3, dtype=torch.float64), "ids": torch.arange(4)}
    save(tmp_path, {}, {"half": half, **others})
    assert equal(read(tmp_path)[1], {"half": half.to(torch.float32), **others})


def shards(folder, files):
    """Store a checkpoint in several files, with the index that says which tensor is where."""
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(SIZES))
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    places = {tensor: name for name, tensors in files.items() for tensor in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return places


def test_a_checkpoint_in_several_files(tmp_path):
    """Fails if a shard is not read."""
    tensors = some_tensors()
    first, second = {"b": tensors["b"], "a.x": tensors["a.x"]}, {"a.y": tensors["a.y"]}
    shards(tmp_path, {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second})
    assert equal(read(tmp_path)[1], tensors)


def test_a_shard_is_missing(tmp_path):
    """Fails if the tensors that are there are taken for all, or the message does not name the file."""
    shards(tmp_path, {"one.safetensors": {"a": torch.ones(1)}, "two.safetensors": {"b": torch.ones(2)}})
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(ValueError, match=rf"has no two\.safetensors, which {INDEX} lists; it has .*one\.safetensors"):
        read(tmp_path)


def test_a_shard_lacks_a_tensor(tmp_path):
    """Fails if an index that promises more than the files hold goes unnoticed."""
    shards(tmp_path, {"one.safetensors": {"a": torch.ones(1)}})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(["c", "a", "b"], "one.safetensors")}))
    with pytest.raises(ValueError, match=r"lists tensors that the files lack: b, c$"):
        read(tmp_path)


@pytest.mark.parametrize(
    "place",
    ["../out.safetensors", "{outside}", "..\\out.safetensors", "x/../../out.safetensors", "out.bin", 3, None, ["a"]],
)
def test_an_index_that_points_elsewhere(tmp_path, place):
    """Fails if a forged index makes us read a file outside the folder, or a pickle."""
    outside = tmp_path / "out.safetensors"
    save_file({"a": torch.ones(1)}, outside)
    shards(tmp_path / "model", {"one.safetensors": {"a": torch.ones(1)}})
    place = str(outside) if place == "{outside}" else place
    (tmp_path / "model" / INDEX).write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(ValueError, match=f'{INDEX} wants a "weight_map" of tensors to .safetensors files in the same'):
        read(tmp_path / "model")


@pytest.mark.parametrize("index", [{}, {"weight_map": ["one.safetensors"]}])
def test_an_index_without_its_map(tmp_path, index):
    """Fails if an index of another form ends in a traceback."""
    shards(tmp_path, {"one.safetensors": {"a": torch.ones(1)}})
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=f'{INDEX} wants a "weight_map"'):
        read(tmp_path)


class Bomb:
    """A pickle of it makes a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "last.ckpt", "weights.pkl", WEIGHTS])
def test_pickles_are_never_opened(tmp_path, name):
    """Fails if a pickle is opened, also one that calls itself safetensors, or the message lacks reason or way out."""
    went_off = tmp_path / "went off"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / CONFIG).write_text("{}")
    (folder / name).write_bytes(pickle.dumps(Bomb(went_off)))
    wanted = rf"{WEIGHTS} is cut short, altered or no safetensors file" if name == WEIGHTS else (
        rf"has no {WEIGHTS} and no {INDEX}; it has .*{name}.*runs whatever code it holds.*save_pretrained"
    )  # fmt: skip
    with pytest.raises(ValueError, match=wanted):
        read(folder)
    assert not went_off.exists()


def test_a_file_cut_anywhere(folder):
    """Fails if a cut at any byte gives tensors, or an error that does not name the file."""
    path = folder / WEIGHTS
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"model/{WEIGHTS} is cut short, altered or no safetensors file"):
            read(folder)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "cut short, altered or no JSON"),
        (b'{"n_embd": 3', "cut short, altered or no JSON"),
        (b'{"n_embd": "\xff"}', "cut short, altered or no JSON"),
        (b"[1, 2]", "holds a list, wanted an object"),
    ],
)
def test_a_damaged_config(folder, content, wanted):
    """Fails if a broken config.json ends in a traceback that does not name it."""
    (folder / CONFIG).write_bytes(content)
    with pytest.raises(ValueError, match=f"model/{CONFIG}.*{wanted}"):
        read(folder)


def test_no_config(folder):
    """Fails if the message does not say which file is wanted and which are there."""
    (folder / CONFIG).unlink()
    with pytest.raises(ValueError, match=rf"has no {CONFIG}.*it has \['{WEIGHTS}'\]$"):
        read(folder)


# --- where checkpoints are ------------------------------------------------------

NO_NAMES = [
    "./gpt",
    "/nowhere/gpt",
    "~/nowhere/gpt",
    "../gpt",
    "a/b/c",
    "models\\gpt",
    "gpt2/",
    "",
    "gpt 2",
    Path("gpt2"),
]


@pytest.mark.parametrize("function", [read, tokenizer])
@pytest.mark.parametrize("source", NO_NAMES, ids=repr)
def test_what_looks_like_a_path_is_not_looked_for_on_the_hub(function, source, no_network, tmp_path, monkeypatch):
    """Fails if a mistyped path is sent to the hub, or the empty string is taken for the working folder."""
    monkeypatch.chdir(tmp_path)
    save(".", SIZES, some_tensors())
    with pytest.raises(ValueError, match=r"there is no folder '.*', and it is not a name on the Hugging Face hub"):
        function(source)


@pytest.mark.parametrize("function", [read, tokenizer])
def test_a_file_is_not_a_checkpoint(function, folder, no_network):
    """Fails if the path of the weights themselves ends in a traceback."""
    with pytest.raises(ValueError, match=f"{WEIGHTS} is a file: wanted the folder"):
        function(folder / WEIGHTS)


def test_a_folder_goes_before_the_hub(folder, no_network, monkeypatch):
    """Fails if a folder named as a model of the hub is passed over, or "~" is taken for a name."""
    monkeypatch.chdir(folder.parent)
    folder.rename("gpt2")
    monkeypatch.setenv("HOME", str(folder.parent))
    assert read("gpt2")[0] == SIZES
    assert read("~/gpt2")[0] == SIZES


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub with one model, "owner/tiny", that answers as the real one does."""

    files, log = {}, []
    commit = "c" * 40

    def answer(self, with_body):
        self.log.append(f"{self.command} {self.path}")
        prefix = "/owner/tiny/resolve/main/"
        body = self.files.get(self.path.removeprefix(prefix), b"") if self.path.startswith(prefix) else b""
        self.send_response(200 if body else 404)
        if body:
            self.send_header("ETag", f'"{hash(body)}"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound" if self.path.startswith(prefix) else "RepoNotFound")
        self.send_header("X-Repo-Commit", self.commit)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def do_GET(self):
        self.answer(with_body=True)

    def do_HEAD(self):
        self.answer(with_body=False)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(folder, monkeypatch):
    """The address of a hub on loopback that has the checkpoint `folder` and a vocabulary."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(Hub, "files", {**files, "vocab.txt": b"[UNK]\n[CLS]\n[SEP]\nplay\n##ing\n"})
    monkeypatch.setattr(Hub, "log", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield "http://{}:{}".format(*server.server_address)
        server.shutdown()
        thread.join()


SESSION = """
from course_lib.utils.huggingface import read, tokenizer
for _ in range(2):
    config, tensors = read("owner/tiny")
    print(config["n_embd"], sorted(tensors), tokenizer("owner/tiny").encode("playing").ids)
try:
    read("owner/other")
except Exception as error:
    print(type(error).__name__, error)
"""


def session(address, home, offline):
    """What a fresh interpreter prints that has this hub, and a cache of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_OFFLINE": offline, "HF_HUB_DISABLE_XET": "1"}
    environment["PYTHONPATH"] = str(Path(huggingface.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, cwd=home, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_model_of_the_hub_is_fetched_once(hub, tmp_path):
    """Fails if a file is asked for twice, an absent one ends the search, or the second time needs the network."""
    first = session(hub, tmp_path, "0")
    assert first[:2] == ["3 ['a.x', 'a.y', 'b'] [1, 3, 4, 2]"] * 2
    assert first[2] == (
        "DataError there is no folder 'owner/other' here, and its config.json cannot be had from the Hugging Face hub, "
        "which shows no model of that name: check its spelling"
    )
    for name in (CONFIG, WEIGHTS, "vocab.txt"):
        asked = [line.split()[0] for line in Hub.log if line.endswith(f"/owner/tiny/resolve/main/{name}")]
        assert asked == ["HEAD", "GET"]
    Hub.log.clear()
    second = session(hub, tmp_path, "1")
    assert Hub.log == []
    assert second[:2] == first[:2]
    way_out = "connect to the internet and try again, or give a folder that has its files"
    assert second[2].endswith(f"which does not answer: {way_out}")


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (errors.LocalEntryNotFoundError("no connection"), "which does not answer: connect to the internet"),
        (ConnectionResetError("reset"), r"\(reset\): try again, or give a folder"),
        (OSError(28, "No space left on device"), r"No space left on device\): try again"),
        (RuntimeError(), r"\(RuntimeError\): try again"),
    ],
)
def test_the_hub_cannot_be_reached(monkeypatch, tmp_path, error, wanted):
    """Fails if a network error comes through as it is, without the file and what to do."""

    def fail(*_):
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(DataError, match=f"no folder 'gpt2' here, and its {CONFIG} cannot be had from .* hub.*{wanted}"):
        read("gpt2")


def test_a_cached_model_is_found_and_nothing_is_fetched(no_network, monkeypatch, tmp_path):
    """Fails if the data sets' cache does not go first, half a model is taken, or the hub's own cache is passed over."""
    own, hub = tmp_path / "tiny", tmp_path / "hub"
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    monkeypatch.setattr(
        huggingface_hub,
        "try_to_load_from_cache",
        lambda name, file: str(hub / file) if name == "owner/tiny" and (hub / file).exists() else None,
    )
    wanted = rf"owner/tiny is not on this machine: .*from_pretrained\('owner/tiny'\).*or put its {CONFIG}.* into {own}$"
    for folder in (hub, own):
        folder.mkdir()
        for name in (CONFIG, WEIGHTS):
            (folder / name).touch()
        if folder == hub:
            with pytest.raises(DataError, match=wanted):
                huggingface.cached("owner/tiny", "tiny")
            (folder / "tokenizer.json").touch()
        assert huggingface.cached("owner/tiny", "tiny") == str(hub)
    (own / "tokenizer.json").touch()
    assert huggingface.cached("owner/tiny", "tiny") == str(own)


def test_a_model_of_the_hub_with_pickles_only(monkeypatch, tmp_path):
    """Fails if weights that are not safetensors are asked for."""
    asked = []
    (tmp_path / CONFIG).write_text("{}")

    def download(source, name):
        asked.append(name)
        return str(tmp_path / CONFIG) if name == CONFIG else None

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface, "_download", download)
    with pytest.raises(ValueError, match=rf"owner/old has no {WEIGHTS} and no {INDEX}\. Other weights are not read"):
        read("owner/old")
    assert asked == [CONFIG, WEIGHTS, INDEX]


# --- into a model ---------------------------------------------------------------


def test_load_copies(folder):
    """Fails if a tensor goes to the wrong place or its dtype comes along, or if the model keeps the tensor itself."""
    model = nn.Linear(3, 2).double()
    tensors = {"bias": torch.tensor([0.5, -1.5]), "weight": torch.arange(6.0).view(2, 3)}
    load(model, tensors, "here")
    tensors["bias"].zero_()
    assert equal(model.state_dict(), {
        "weight": torch.arange(6, dtype=torch.float64).view(2, 3),
        "bias": torch.tensor([0.5, -1.5], dtype=torch.float64),
    })  # fmt: skip
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_load_names_everything_that_does_not_fit():
    """Fails if one of several faults is left out, or if the tensors that fit are loaded all the same."""
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = {name: torch.full_like(tensor, 7) for name, tensor in before.items()}
    del tensors["1.bias"], tensors["2.bias"]
    tensors |= {"0.weight": torch.ones(3, 2), "2.weight": torch.ones(6, 2), "h.0": torch.ones(4), "b": torch.ones(())}
    with pytest.raises(ValueError, match="some/folder does not fit Sequential") as caught:
        load(model, tensors, "some/folder")
    assert str(caught.value).split("\n  ") == [
        "some/folder does not fit Sequential:",
        "missing: 1.bias (2,)",
        "missing: 2.bias (5,)",
        "unexpected: h.0 (4,)",
        "unexpected: b ()",
        "misshapen: 0.weight is (3, 2), wanted (2, 3)",
        "misshapen: 2.weight is (6, 2), wanted (5, 2)",
    ]
    assert equal(model.state_dict(), before)


def test_expect_lets_defaults_pass():
    """Fails if a setting that is left out, or one of several allowed values, is refused."""
    config = {"model_type": "bert", "hidden_act": "gelu", "layers": 0}
    assert check_config(config, "layers", model_type="bert", hidden_act=("relu", "gelu"), is_decoder=False) is None


def test_expect_names_all_that_differs():
    """Fails if only the first fault is named."""
    config = {"model_type": "gpt2", "tied": None}
    with pytest.raises(ValueError, match="has no") as caught:
        check_config(config, "size", "model_type", "depth", model_type=("bert", "roberta"), tied=True)
    assert str(caught.value) == (
        "config.json has no size; config.json has no depth; config.json has model_type 'gpt2', wanted 'bert' or "
        "'roberta'; config.json has tied None, wanted True"
    )


# --- texts ----------------------------------------------------------------------

TEXTS = {
    "nothing": "",
    "a blank": " ",
    "blanks": "      ",
    "runs of blanks": "a  b   c    d ",
    "tabs": "\tdef f(x):\n\t\treturn  x\t",
    "newlines": "one\n\ntwo\n \n three\n",
    "Windows": "one\r\ntwo\r\n\r\nthree\r",
    "blanks of other kinds": "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\vh\fi",
    "contractions": "I'll, don't! We've they're it's I'm he'd 'tis O'Neill DON'T ’s",
    "numbers": "1 22 333 4,444.55 1e-6 0x1F ½ ² ٣ Ⅳ 3rd",
    "punctuation": '(a)[b]{c}--d...e?!f/g\\h@i#j$k%l^m&n*o_p+q=r|s~t`u<v>w"x¿y«z»',
    "accents": "café naïve Ångström Łódź İstanbul straße ŒUVRE",
    "accents apart": unicodedata.normalize("NFD", "café naïve Ångström ç ñ"),
    "accents in heaps": "z\u0351\u036b\u0343a\u0300\u0301\u0302l",
    "Greek": "Ἀθῆναι ΣΊΣΥΦΟΣ",
    "Chinese": "我爱北京天安门。hello世界",
    "Japanese and Korean": "東京タワー ﾊﾝｶｸ 한국어",
    "rare Chinese": "\U00020000\U0002a6d6a",
    "right to left": "שָׁלוֹם مرحبا \u202babc\u202c \u200fx",
    "Hindi and Thai": "नमस्ते สวัสดี",
    "emoji": "😀 I ❤️ it👍🏽",
    "joined emoji": "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪",
    "zero width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f\u00adg",
    "control characters": "a\x00b\x01c\x1bd\x7fe\x9ff\x1cg",
    "not characters": "a\ufffdb\ufffec\uffffd\ue000e\U0010ffff",
    "a word of 100": "x" * 100,
    "a word of 101": "x" * 101,
    "a very long word": "ab" * 2000 + " end",
    "long blanks": "a" + " " * 300 + "b",
    "end of text": "one<|endoftext|>two <|endoftext|> <|ENDOFTEXT|> <|endof text|>",
    "marks": "a [MASK] b[SEP]c [CLS] [UNK][PAD] [mask] [ MASK ]",
    "pieces": "play ##ing played replaying playing-play",
}
every_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


# --- byte-level BPE -------------------------------------------------------------

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A folder with vocab.json and merges.txt as GPT-2 has them, small, trained on the texts above."""
    folder = tmp_path_factory.mktemp("gpt2")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=420, initial_alphabet=letters, show_progress=False)
    made.train_from_iterator([*TEXTS.values(), "the play of the player is playing there " * 5], trainer)
    made.model.save(str(folder))
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps(vocab | {END: len(vocab)}), encoding="utf-8")
    return folder


def byte_letters():
    """A visible letter for each byte: itself where it is one in Latin-1, else the next one from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + i) for i, byte in enumerate(hidden)}


def bpe_by_hand(text, folder):
    """GPT-2's tokens of a text by their definition: cut, written as bytes, joined by the earliest rule first."""
    rules = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    rank = {tuple(rule.split(" ")): i for i, rule in enumerate(rules) if rule}
    letters, tokens = byte_letters(), []
    for part in regex.split(f"({regex.escape(END)})", text):
        # cut after English contractions, and between letters, digits, other signs and white space, each of the first
        # three with one blank before it
        words = [END] if part == END else regex.findall(
            r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+"
            r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+", part)  # fmt: skip
        for word in words:
            symbols = [END] if word == END else [letters[byte] for byte in word.encode()]
            while pairs := [pair for pair in pairwise(symbols) if pair in rank]:
                best, joined = min(pairs, key=rank.get), []
                while symbols:
                    size = 2 if tuple(symbols[:2]) == best else 1
                    joined.append("".join(symbols[:size]))
                    symbols = symbols[size:]
                symbols = joined
            tokens += symbols
    return tokens


@every_text
def test_byte_level_bpe_by_hand(gpt2, text):
    """Fails if a text is cut at other places, bytes have other letters, or rules are applied in another order."""
    assert tokenizer(gpt2).encode(text).tokens == bpe_by_hand(text, gpt2)


@every_text
def test_byte_level_bpe_comes_back(gpt2, text):
    """Fails if one character of any text is lost: bytes can write everything."""
    made = tokenizer(gpt2)
    assert made.decode(made.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0")  # an older transformers on an older tokenizers
def test_byte_level_bpe_against_transformers(gpt2):
    """Fails if an id or a text differs from GPT2Tokenizer's, read from the same two files."""
    ours, theirs = tokenizer(gpt2), reference().GPT2Tokenizer.from_pretrained(gpt2)
    assert ours.get_vocab() == theirs.get_vocab()
    for text in TEXTS.values():
        ids = ours.encode(text).ids
        assert ids == theirs(text).input_ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_bytes_that_are_no_text(gpt2):
    """Fails if half of a character (what a language model may write) raises, or swallows its neighbours."""
    made, letters = tokenizer(gpt2), byte_letters()
    ids = [made.token_to_id(letters[byte]) for byte in b"a\xf0\x9f\x98z\xff"]
    assert made.decode(ids) == "a�z�"


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_half_a_character_is_refused(kind, request):
    """Fails if a lone surrogate, which no file can hold, gives tokens."""
    with pytest.raises(TypeError, match="must be str"):
        tokenizer(request.getfixturevalue(kind)).encode("a\ud83d")


def test_a_special_tokens_name_can_be_read_as_text(gpt2):
    """Fails if the way that the docstring gives leaves the token in, or does not give the text back."""
    made = tokenizer(gpt2)
    assert made.encode(f"one{END}two").tokens[1] == END
    made.encode_special_tokens = True
    ids = made.encode(f"one{END}two").ids
    assert made.token_to_id(END) not in ids
    assert made.decode(ids) == f"one{END}two"


def test_the_end_of_text_is_one_token(gpt2):
    """Fails if the mark between documents is cut into letters, or stays in a text where special tokens are skipped."""
    made = tokenizer(gpt2)
    encoded = made.encode(f"a{END}b")
    assert encoded.tokens == ["a", END, "b"]
    assert made.decode(encoded.ids) == "ab"


def test_a_vocabulary_without_the_end_of_text(gpt2, tmp_path):
    """Fails if a token is added behind the vocabulary, for which the model has no row."""
    vocab = json.loads((gpt2 / "vocab.json").read_text(encoding="utf-8"))
    del vocab[END]
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (tmp_path / "merges.txt").write_bytes((gpt2 / "merges.txt").read_bytes())
    assert tokenizer(tmp_path).get_vocab() == vocab


@pytest.mark.parametrize(
    ("vocab", "merges", "wanted"),
    [
        ('{"a": 0, "b": 1, "ab": 2}', "#version: 0.2\na b\n", r"vocab\.json lacks 254 of the 256 bytes"),
        ('{"a": 0, "b": 1}', "#version: 0.2\na b\n", r"merges\.txt joins 'a b': wanted two pieces"),
        ('{"a": 0, "b": 1}', "a  b\n", r"merges\.txt joins 'a  b': wanted two pieces"),
        ('{"a": 0', "#version: 0.2\n", r"vocab\.json is cut short, altered or no JSON"),
    ],
)
def test_a_damaged_byte_level_vocabulary(tmp_path, vocab, merges, wanted):
    """Fails if a vocabulary that loses bytes is taken, or a broken file ends in a nameless error."""
    (tmp_path / "vocab.json").write_text(vocab)
    (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(ValueError, match=wanted):
        tokenizer(tmp_path)


# --- WordPiece ------------------------------------------------------------------

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["play", "##ing", "##ed", "re", "##play", "ab", "##ab", "hello", "##!", "end", "’", "☺", "##️", "½", "³"]


def write_bert(folder, capitals=False, settings=None):
    """A folder with vocab.txt as BERT has it, small: letters of many scripts, whole and as continuations."""
    text = unicodedata.normalize("NFD", "".join(TEXTS.values()).lower()) + ("AÉXŁ" if capitals else "")
    keep = sorted({c for c in text if unicodedata.category(c)[0] in "LNPS" and c not in "qzü😀京"})
    words = [*SPECIAL, *WORDS, *(c for c in keep if c not in WORDS), *(f"##{c}" for c in keep if c != "!")]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert"))


def is_chinese(c):
    blocks = [
        (0x4E00, 0x9FFF),
        (0x3400, 0x4DBF),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2CEAF),
        (0xF900, 0xFAFF),
        (0x2F800, 0x2FA1F),
    ]
    return any(first <= ord(c) <= last for first, last in blocks)


def wordpiece_by_hand(text, vocab, lower=True):
    """BERT's tokens of a text by their definition."""
    tokens = []
    for part in regex.split(r"(\[(?:PAD|UNK|CLS|SEP|MASK)\])", text):
        if part in SPECIAL:
            tokens.append(part)
            continue
        kept = [" " if regex.match(r"\p{White_Space}", c) else c for c in part
                if c in "\t\n\r" or (unicodedata.category(c) not in ("Cc", "Cf") and c != "\ufffd")]  # fmt: skip
        text = "".join(f" {c} " if is_chinese(c) else c for c in kept)
        if lower:
            text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
            text = "".join(c.lower() for c in text)  # one by one: no sigma is a last one
        spaced = "".join(f" {c} " if unicodedata.category(c)[0] == "P" or c in "$+<=>^`|~" else c for c in text)
        for word in spaced.split():
            tokens += pieces_by_hand(word, vocab) if len(word) <= 100 else ["[UNK]"]
    return tokens


def pieces_by_hand(word, vocab):
    """The longest known piece from the left, again and again; [UNK] if there is none."""
    pieces, start = [], 0
    while start < len(word):
        known = [end for end in range(start + 1, len(word) + 1) if ("##" if start else "") + word[start:end] in vocab]
        if not known:
            return ["[UNK]"]
        pieces.append(("##" if start else "") + word[start : known[-1]])
        start = known[-1]
    return pieces


@every_text
@pytest.mark.parametrize("lower", [True, False])
def test_wordpiece_by_hand(tmp_path, text, lower):
    """Fails if a text is cleaned, cut or cut into pieces at other places, or a capital or an accent stays or goes."""
    made = tokenizer(write_bert(tmp_path, capitals=True, settings={"do_lower_case": lower}))
    wanted = wordpiece_by_hand(text, made.get_vocab(), lower)
    assert made.encode(text).tokens == ["[CLS]", *wanted, "[SEP]"]


@pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0")  # an older transformers on an older tokenizers
def test_wordpiece_against_transformers(bert):
    """Fails if an id, a segment or a decoded text differs from BertTokenizer's, read from the same file."""
    ours, theirs = tokenizer(bert), reference().BertTokenizer.from_pretrained(bert)
    assert ours.get_vocab() == theirs.get_vocab()
    texts = list(TEXTS.values())
    for first, second in zip(texts, [*texts[1:], "end"], strict=True):  # none empty: they take "" for no text
        alone, pair = ours.encode(first), ours.encode(first, second)
        assert alone.ids == theirs(first).input_ids
        wanted = theirs(first, second)
        assert (pair.ids, pair.type_ids) == (wanted.input_ids, wanted.token_type_ids)
        assert ours.decode(alone.ids) == theirs.decode(alone.ids, skip_special_tokens=True)


def test_wordpiece_worked_by_hand(bert):
    """Fails if the longest piece is not taken first, or a word with one unknown rest is not [UNK] as a whole."""
    made = tokenizer(bert)
    pieces = made.encode("Replaying PLAYED, playz!", add_special_tokens=False).tokens
    assert pieces == ["re", "##play", "##ing", "play", "##ed", ",", "[UNK]", "!"]
    pair = made.encode("play", "ab end")
    assert pair.tokens == ["[CLS]", "play", "[SEP]", "ab", "end", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1, 1]
    assert made.decode(pair.ids) == "play ab end"


@pytest.mark.parametrize(
    ("capitals", "settings", "wanted"),
    [
        (False, None, ["a", "e", "x"]),
        (True, None, ["A", "É", "X"]),
        (True, {"do_lower_case": True}, ["a", "e", "x"]),
        (True, {"do_lower_case": True, "strip_accents": False}, ["a", "[UNK]", "x"]),
        (False, {"do_lower_case": False}, ["[UNK]", "[UNK]", "[UNK]"]),
    ],
)
def test_which_models_are_uncased(tmp_path, capitals, settings, wanted):
    """Fails if the settings are not read, or a cased vocabulary without settings loses its capitals."""
    made = tokenizer(write_bert(tmp_path, capitals, settings))
    assert made.encode("A É X", add_special_tokens=False).tokens == wanted


def test_a_vocabulary_with_windows_line_ends(bert, tmp_path):
    """Fails if "\\r" becomes part of every piece, or the last line end one more piece."""
    (tmp_path / "vocab.txt").write_bytes((bert / "vocab.txt").read_bytes().replace(b"\n", b"\r\n"))
    assert tokenizer(tmp_path).get_vocab() == tokenizer(bert).get_vocab()


def test_a_vocabulary_that_is_not_berts(tmp_path):
    """Fails if a file without the special tokens ends in an error about something else."""
    (tmp_path / "vocab.txt").write_text("[UNK]\nplay\n")
    with pytest.raises(ValueError, match=r"vocab\.txt lacks \[CLS\], \[SEP\]: wanted BERT's vocabulary"):
        tokenizer(tmp_path)


# --- tokenizer.json -------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0")  # an older transformers on an older tokenizers
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_tokenizer_that_transformers_saved(kind, request, tmp_path):
    """Fails if tokenizer.json is passed over, or its padding and truncation reach our batches."""
    folder = request.getfixturevalue(kind)
    theirs = getattr(reference(), {"gpt2": "GPT2Tokenizer", "bert": "BertTokenizer"}[kind]).from_pretrained(folder)
    theirs.backend_tokenizer.enable_truncation(3)
    theirs.backend_tokenizer.enable_padding(length=1000)
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
    (tmp_path / "vocab.txt").write_text("another\n")
    ours, wanted = tokenizer(tmp_path), tokenizer(folder)
    for text in TEXTS.values():
        assert ours.encode(text).ids == wanted.encode(text).ids


def test_a_damaged_tokenizer(tmp_path):
    """Fails if a broken tokenizer.json ends in a nameless error."""
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ValueError, match=r"tokenizer\.json is cut short, altered or no tokenizer"):
        tokenizer(tmp_path)


def test_no_tokenizer(folder):
    """Fails if the message does not say what is wanted and what is there; vocab.json alone is not enough."""
    (folder / "vocab.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"has no tokenizer\.json, nor vocab\.json and merges\.txt, nor vocab\.txt.*it has"
    ):
        tokenizer(folder)


# --- the real vocabularies ------------------------------------------------------

REAL = {"gpt2": {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}, "bert": {"vocab.txt": "vocab.txt"}}
PLACES = {kind: datasets.cache_folder() / name for kind, name in {"gpt2": "gpt2_bpe", "bert": "bert_vocab"}.items()}


@pytest.mark.skipif(not all(map(Path.exists, PLACES.values())), reason="COURSE_DATA has no gpt2_bpe and bert_vocab")
@pytest.mark.parametrize(
    ("kind", "known"),
    [("gpt2", {"Hello world": [15496, 995], END: [50256]}), ("bert", {"Hello world": [101, 7592, 2088, 102]})],
)
def test_the_real_vocabularies(kind, known, tmp_path):
    """Fails if published ids or those that transformers gives to real text differ."""
    for name, called in REAL[kind].items():
        (tmp_path / called).write_bytes(lzma.decompress((PLACES[kind] / f"{name}.xz").read_bytes()))
    ours = tokenizer(tmp_path)
    theirs = getattr(reference(), {"gpt2": "GPT2Tokenizer", "bert": "BertTokenizer"}[kind]).from_pretrained(tmp_path)
    assert {text: ours.encode(text).ids for text in known} == known
    for text in [*TEXTS.values(), *datasets.docstrings(50_000).split("\n\n")]:
        assert ours.encode(text).ids == theirs(text).input_ids
