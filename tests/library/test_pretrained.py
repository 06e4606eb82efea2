"""The models that come with the course: their files, their vocabularies, and what happens without them."""

import json
import subprocess
import sys
import zipfile

import pytest
import torch

from course_lib import pretrained
from course_lib.generate import generate, greedy
from course_lib.gpt import GPT, GPTConfig
from course_lib.positional import RoPE
from course_lib.pretrained import (
    Subwords,
    build_translator,
    load_shakespeare,
    load_translator,
    round_to_half,
    save_shakespeare,
    save_translator,
)
from course_lib.text import EOS, SPECIALS
from tools.notebooks import editions

SIZES = {"d_model": 12, "num_heads": 3, "num_layers": 2, "dim_feedforward": 20}


@pytest.fixture
def small():
    """A model with random weights, and two vocabularies."""
    torch.manual_seed(0)
    german = Subwords([*SPECIALS, "a", "b</w>", "ab</w>"], [("b", "</w>"), ("a", "b</w>")])
    english = Subwords([*SPECIALS, "c</w>", "d</w>"], [("c", "</w>"), ("d", "</w>")])
    return round_to_half(build_translator(len(german), len(english), **SIZES)).eval(), german, english


def test_what_is_saved_comes_back(small, tmp_path):
    """Fails if a weight, a piece or a merge is lost, or rounding is not what was scored."""
    save_translator(tmp_path, *small, SIZES)
    model, german, english = load_translator(tmp_path)
    for name, tensor in small[0].state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert german.encode("ab b") == small[1].encode("ab b") == [6, 5, EOS]
    assert english.decode([4, 5, EOS, 4]) == "c d"
    assert not model.training


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_missing_file_says_what_to_do(small, tmp_path, missing):
    """Fails if a part is missing and the message does not say how to get it."""
    save_translator(tmp_path, *small, SIZES)
    (tmp_path / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {missing}.*install course_lib again, or train one"):
        load_translator(tmp_path)


def test_another_file_is_refused(small, tmp_path):
    """Fails if weights of other sizes are taken."""
    save_translator(tmp_path, *small, SIZES)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["sizes"]["dim_feedforward"] = 24
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="does not fit Translator"):
        load_translator(tmp_path)


def test_a_vocabulary_begins_with_the_specials():
    """Fails if ids of <eos> and the like could stand for words."""
    with pytest.raises(ValueError, match="the first pieces must be"):
        Subwords(["a", "b"], [])


def test_the_weights_by_layer_are_those_of_the_model(small):
    """Fails if a tensor is forgotten, named twice, or shares memory with the model."""
    weights = pretrained.weights_by_layer(small[0])
    layers = [*weights["encoder"], *weights["decoder"]]
    count = weights["source_table"].numel() + weights["target_table"].numel()
    count += sum(tensor.numel() for layer in layers for tensor in layer.values())
    assert count == sum(p.numel() for p in small[0].parameters())
    weights["source_table"].zero_()
    assert small[0].source_embedding.embedding.weight.any()
    last = small[0].transformer.decoder.layers[-1]
    assert torch.equal(weights["decoder"][-1]["cross_out_weight"], last.multihead_attn.out_proj.weight)
    assert torch.equal(weights["decoder"][-1]["gain3"], last.norm3.weight)


def test_the_shipped_weights_translate():
    """Fails if the files of the package are not those of a trained model."""
    model, german, english = load_translator()
    source = torch.tensor([german.encode("Ein Hund läuft durch den Schnee .")])
    words = english.decode(greedy(model, source, max_new_tokens=20)[0].tokens).split()
    assert {"dog", "snow"} <= set(words)


@pytest.mark.parametrize("folder", [pretrained.WEIGHTS, pretrained.SHAKESPEARE], ids=lambda folder: folder.name)
def test_the_shipped_files_are_small(folder):
    """Fails if weights and vocabulary together are larger than 4 MB."""
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4e6


@pytest.mark.slow
def test_the_wheel_holds_the_weights(tmp_path):
    """Fails if a reader who installs the wheel gets no weights."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=editions.ROOT, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for model in ("translator", "shakespeare"):
        for name in ("config.json", "model.safetensors"):
            assert f"course_lib/weights/{model}/{name}" in names


# --- the GPT ---------------------------------------------------------------------


@pytest.fixture
def writer():
    """A GPT with random weights, dropout in training, and its characters."""
    torch.manual_seed(0)
    return round_to_half(GPT(GPTConfig(5, 9, 12, 2, 3, 20, dropout=0.3))), "\nabcd"


def test_a_saved_gpt_comes_back(writer, tmp_path):
    """Fails if a weight or a character is lost, the file is not in half precision, or dropout comes back."""
    model, characters = writer
    save_shakespeare(tmp_path, model, list(characters))
    loaded, read = load_shakespeare(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert read == characters
    assert not loaded.training
    assert loaded.config.dropout == 0
    numbers = sum(p.numel() for p in model.parameters())
    assert 2 * numbers < (tmp_path / "model.safetensors").stat().st_size < 3 * numbers + 4000


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_missing_part_of_the_gpt_says_what_to_do(writer, tmp_path, missing):
    """Fails if a part is missing and the message names another model's run."""
    save_shakespeare(tmp_path, *writer)
    (tmp_path / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {missing}.*trained GPT.*shakespeare-weights --seeds 1"):
        load_shakespeare(tmp_path)


def test_the_weights_of_a_gpt_are_those_of_the_model(writer):
    """Fails if a tensor is forgotten, named twice, or shares memory with the model."""
    model, _ = writer
    weights = pretrained.weights_by_layer(model)
    outside = [tensor for tensor in weights.values() if isinstance(tensor, torch.Tensor)]
    inside = [tensor for block in weights["blocks"] for tensor in block.values()]
    assert sum(tensor.numel() for tensor in outside + inside) == sum(p.numel() for p in model.parameters())
    last, mine = model.blocks[-1], weights["blocks"][-1]
    assert torch.equal(mine["out_weight"], last.attn.out_proj.weight)
    assert torch.equal(mine["weight2"], last.mlp[2].weight)
    assert torch.equal(mine["gain2"], last.ln2.weight)
    assert torch.equal(weights["positions"], model.positions)
    for tensor in outside + inside:
        tensor.fill_(7.0)
    assert not any((p == 7.0).any() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "position"),
    [({}, RoPE(4)), ({"tied": False}, None), ({"bias": False}, None)],
    ids=["RoPE", "tied", "bias"],
)
def test_another_kind_of_gpt_has_no_such_weights(options, position):
    """Fails if weights that the names do not tell apart are handed out as if they were all."""
    model = GPT(GPTConfig(5, 9, 12, 1, 3, **options), position)
    with pytest.raises(ValueError, match="wanted a GPT with learned positions, a tied table and biases"):
        pretrained.weights_by_layer(model)


def test_the_shipped_gpt_writes_speeches():
    """Fails if the files of the package are not those of a trained model."""
    model, characters = load_shakespeare()
    assert len(characters) == model.vocab_size == 65
    prompt = [characters.index(character) for character in "GREMIO:\nI will"]
    (new,) = generate(model, [prompt], 200, top_k=1)
    words = "".join(characters[i] for i in new).split()
    assert {"the", "and", "to", "of", "I", "you", "my", "a", "in", "shall"} & set(words)
    assert all(len(word) < 20 for word in words)
