r"""Weights and tokenizers that others have trained, in the files of the Hugging Face hub.

Read `read`, which opens a checkpoint: a model's sizes and its tensors; `load`, which puts the tensors into a model or
says all that does not fit; `check_config`, which says what is wrong with the sizes; `save`, which writes such a
checkpoint; `tokenizer`, which cuts a text into the pieces that the model was trained on.

A checkpoint is named by its folder on your disk, or as on the hub ("gpt2"). Weights come from safetensors files alone:
they hold numbers. The older pickle files (pytorch_model.bin) hold a program that builds the numbers, and opening one
runs it, whatever it does.
"""

import json
import os
import re
import tempfile
import warnings
from pathlib import Path

import torch

from course_lib.datasets import DataError, cache_folder

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")  # "gpt2", "owner/name"
SHARD_NAME = re.compile(r"[A-Za-z0-9_.-]+\.safetensors")  # without a slash: it cannot leave the folder

# --- checkpoints ----------------------------------------------------------------


def read(source):
    """Open a checkpoint: config.json as a dict, and the tensors by the file's names; 16-bit weights in float32.

    Args:
        source: a folder with config.json and model.safetensors, or with model.safetensors.index.json and the files it
            lists; or a name on the Hugging Face hub, whose files are fetched once. A folder goes first.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder, {"n_embd": 3}, {"wte.weight": torch.zeros(5, 3)})
    ...     config, tensors = read(folder)
    >>> config, tensors["wte.weight"].shape
    ({'n_embd': 3}, torch.Size([5, 3]))
    """
    config = _find(source, CONFIG)
    if config is None:
        raise ValueError(f"{source} has no {CONFIG}, which holds the sizes of the model{_listing(source)}")
    return _read_json(config), _read_weights(source)


def load(model, tensors, source):
    """Copy tensors into a model that has their names and shapes; what does not fit is named, and none is copied.

    >>> load(torch.nn.Linear(3, 2), {"weight": torch.ones(2, 4), "scale": torch.ones(2)}, "a folder")
    Traceback (most recent call last):
    ValueError: a folder does not fit Linear:
      missing: bias (2,)
      unexpected: scale (2,)
      misshapen: weight is (2, 4), wanted (2, 3)
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    came = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    problems = [f"missing: {name} {wanted[name]}" for name in wanted if name not in came]
    problems += [f"unexpected: {name} {came[name]}" for name in came if name not in wanted]
    both = [name for name in wanted if name in came and came[name] != wanted[name]]
    problems += [f"misshapen: {name} is {came[name]}, wanted {wanted[name]}" for name in both]
    if problems:
        raise ValueError("\n  ".join([f"{source} does not fit {type(model).__name__}:", *problems]))
    model.load_state_dict(tensors)


def check_config(config, *needed, **settings):
    """Refuse a checkpoint whose config.json lacks a setting that is needed, or has another value than those allowed.

    A setting that the file leaves out is at its default, and passes.

    >>> check_config({"model_type": "bert"}, "n_embd", model_type="gpt2", activation_function=("gelu", "gelu_new"))
    Traceback (most recent call last):
    ValueError: config.json has no n_embd; config.json has model_type 'bert', wanted 'gpt2'
    """
    problems = [f"{CONFIG} has no {name}" for name in needed if name not in config]
    for name, value in settings.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if name in config and config[name] not in allowed:
            wanted = " or ".join(map(repr, allowed))
            problems.append(f"{CONFIG} has {name} {config[name]!r}, wanted {wanted}")
    if problems:
        raise ValueError("; ".join(problems))


def rename_key(name, rules):
    r"""A tensor's name in another library: the rules (regular expression, replacement), one after the other.

    >>> rename_key("encoder.layers.0.norm1.weight", [(r"^encoder\.layers\.", "h."), (r"norm1\.", "ln_1.")])
    'h.0.ln_1.weight'
    """
    for ours, theirs in rules:
        name = re.sub(ours, theirs, name)
    return name


def save(folder, config, tensors):
    """Write a checkpoint that `read` opens, and other libraries too when config and names are theirs."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    apart = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    with tempfile.TemporaryDirectory(dir=folder) as work:  # tensors of `read` may still lie in the old file
        save_file(apart, Path(work, WEIGHTS), metadata={"format": "pt"})
        Path(work, CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name in (WEIGHTS, CONFIG):
            os.replace(Path(work, name), folder / name)


# --- tokenizers -----------------------------------------------------------------


def tokenizer(source):
    r"""The tokenizer that a model was trained with, without padding and truncation.

    It is read from tokenizer.json, which describes one completely. Older checkpoints hold only the pieces, and their
    names tell the kind: vocab.json and merges.txt are GPT-2's byte-level BPE (the text's bytes, joined pair by pair;
    every text comes back unchanged), vocab.txt BERT's WordPiece (words, each cut into the longest known pieces from the
    left; "##" continues a word, and one that cannot be cut is [UNK]).

    The name of a special token in a text, such as <|endoftext|>, becomes that token. For texts that others write set
    `encode_special_tokens = True` on the tokenizer: then it is read as any other text.

    Returns:
        tokenizers.Tokenizer: `encode(text).ids`, `.tokens`, `.type_ids`; `decode(ids)`.

    >>> words = ["[UNK]", "[CLS]", "[SEP]", "play", "##ing", "!"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "vocab.txt").write_text("\n".join(words))
    ...     pieces = tokenizer(folder).encode("Playing!", "Play").tokens
    >>> pieces
    ['[CLS]', 'play', '##ing', '!', '[SEP]', 'play', '[SEP]']

    Source: Sennrich, Haddow and Birch (2016), arXiv:1508.07909; Radford et al. (2019), "Language Models are
    Unsupervised Multitask Learners", section 2.2; Wu et al. (2016), arXiv:1609.08144, section 4.1.
    """
    from tokenizers import Tokenizer

    if path := _find(source, "tokenizer.json"):
        try:
            made = Tokenizer.from_file(path)
        except Exception as error:  # that library's errors have no type of their own
            raise ValueError(f"{path} is cut short, altered or no tokenizer ({error})") from error
        made.no_padding()
        made.no_truncation()
        return made
    if (vocab := _find(source, "vocab.json")) and (merges := _find(source, "merges.txt")):
        return _byte_level_bpe(vocab, merges)
    if vocab := _find(source, "vocab.txt"):
        settings = _find(source, "tokenizer_config.json")
        return _wordpiece(vocab, {} if settings is None else _read_json(settings))
    wanted = "tokenizer.json, nor vocab.json and merges.txt, nor vocab.txt"
    raise ValueError(f"{source} has no {wanted}: it holds no tokenizer{_listing(source)}")


def _byte_level_bpe(vocab, merges):
    """GPT-2's: the text is cut before spaces, between letters, digits and signs, then written as bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    known = _read_json(vocab)
    lines = Path(merges).read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    if wrong := [pair for pair in pairs if len(pair) != 2 or not known.keys() >= {*pair, "".join(pair)}]:
        raise ValueError(f"{merges} joins {' '.join(wrong[0])!r}: wanted two pieces that are, joined too, in {vocab}")
    if lacking := set(pre_tokenizers.ByteLevel.alphabet()) - known.keys():
        raise ValueError(f"{vocab} lacks {len(lacking)} of the 256 bytes: they would vanish from every text")
    made = Tokenizer(models.BPE(known, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([name for name in ("<|endoftext|>",) if name in known])
    return made


def _wordpiece(path, settings):
    """BERT's. Without the settings, a vocabulary without capitals tells that the model is uncased."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    lines = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    vocab = {word: number for number, word in enumerate(lines)}
    if lacking := [name for name in ("[UNK]", "[CLS]", "[SEP]") if name not in vocab]:
        raise ValueError(f"{path} lacks {', '.join(lacking)}: wanted BERT's vocabulary, one piece a line")
    special = [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocab]
    uncased = all(word == word.lower() for word in vocab if not word.startswith("["))
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", uncased),
        strip_accents=settings.get("strip_accents"),  # None: where lower-cased
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, vocab[name]) for name in ("[CLS]", "[SEP]")],
    )
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(special)
    return made


# --- files ----------------------------------------------------------------------


def cached(name, folder, model="BERT"):
    """Where a model of the hub lies on this machine; nothing is downloaded, and a DataError says what to do.

    It is looked for in `folder` of the data sets' cache (`COURSE_DATA`), then in the hub's own cache; `model` is the
    class that fetches it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a notebook without widgets tqdm complains as it is imported
        from huggingface_hub import try_to_load_from_cache

    needed, own = (CONFIG, WEIGHTS, "tokenizer.json"), cache_folder() / folder
    if all((own / file).is_file() for file in needed):
        return str(own)
    found = [try_to_load_from_cache(name, file) for file in needed]
    if all(isinstance(path, str) for path in found):  # else None, or a mark that the hub has no such file
        return os.path.dirname(found[0])
    raise DataError(
        f"{name} is not on this machine: call {model}.from_pretrained({name!r}) and huggingface.tokenizer({name!r}) "
        f"once, which fetch it from the Hugging Face hub, or put its {', '.join(needed)} into {own}"
    )


def _find(source, name):
    """Path of one file of the source; None if the source has no such file."""
    folder = os.path.expanduser(source)
    if os.path.isdir(folder):
        path = os.path.join(folder, name)
        return path if os.path.isfile(path) else None
    if os.path.exists(folder):
        raise ValueError(f"{source} is a file: wanted the folder of a checkpoint, with {CONFIG} and {WEIGHTS}")
    if isinstance(source, Path) or not HUB_NAME.fullmatch(source):
        raise ValueError(
            f"there is no folder {str(source)!r}, and it is not a name on the Hugging Face hub, such as "
            '"gpt2" or "owner/name"'
        )
    return _download(source, name)


def _download(source, name):
    """Path of a file of the hub in the hub's own cache; None if the model there has no such file."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError, RepositoryNotFoundError

    model = f"there is no folder {source!r} here, and its {name} cannot be had from the Hugging Face hub"
    known = None
    try:
        known = huggingface_hub.try_to_load_from_cache(source, name)
        return known if isinstance(known, str) else huggingface_hub.hf_hub_download(source, name)
    except RemoteEntryNotFoundError:
        return None
    except LocalEntryNotFoundError as error:  # no connection
        if known is not None:  # not a path: the mark that there was no such file when there was a connection
            return None
        way_out = "connect to the internet and try again, or give a folder that has its files"
        raise DataError(f"{model}, which does not answer: {way_out}") from error
    except RepositoryNotFoundError as error:
        raise DataError(f"{model}, which shows no model of that name: check its spelling") from error
    except Exception as error:  # the client's own errors, its HTTP library's, a full disk
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DataError(f"{model} ({reason}): try again, or give a folder that has its files") from error


def _read_weights(source):
    """All tensors of a checkpoint, of one file or of several that an index lists."""
    if path := _find(source, WEIGHTS):
        return _read_safetensors(path)
    index = _find(source, INDEX)
    if index is None:
        raise ValueError(
            f"{source} has no {WEIGHTS} and no {INDEX}{_listing(source)}. Other weights are not read: a pickle "
            "(pytorch_model.bin, .pt, .ckpt, .pkl) runs whatever code it holds when it is opened. If you trust it, "
            "open it with transformers and call the model's save_pretrained(folder), which writes safetensors."
        )
    files = _read_json(index).get("weight_map")  # name of a tensor -> name of the file that holds it
    if not isinstance(files, dict) or not all(SHARD_NAME.fullmatch(str(name)) for name in files.values()):
        raise ValueError(f'{index} wants a "weight_map" of tensors to .safetensors files in the same folder')
    tensors = {}
    for name in sorted(set(files.values())):
        if (path := _find(source, name)) is None:
            raise ValueError(f"{source} has no {name}, which {INDEX} lists{_listing(source)}")
        tensors |= _read_safetensors(path)
    if lacking := files.keys() - tensors.keys():
        raise ValueError(f"{INDEX} of {source} lists tensors that the files lack: {', '.join(sorted(lacking))}")
    return tensors


def _read_safetensors(path):
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is cut short, altered or no safetensors file ({error}): delete it and get it again"
        ) from error
    half = (torch.float16, torch.bfloat16)
    return {name: tensor.float() if tensor.dtype in half else tensor for name, tensor in tensors.items()}


def _read_json(path):
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is cut short, altered or no JSON ({error}): delete it and get it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, wanted an object: names with values")
    return content


def _listing(source):
    """What a folder holds, to be put behind a message; nothing for a name of the hub."""
    folder = os.path.expanduser(source)
    return f"; it has {sorted(os.listdir(folder))}" if os.path.isdir(folder) else ""
