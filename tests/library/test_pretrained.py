"""The translator that comes with the course: its file, its vocabularies, and what happens without them."""

import json
import subprocess
import sys
import zipfile

import pytest
import torch

from course_lib import pretrained
from course_lib.generate import greedy
from course_lib.pretrained import Subwords, build_translator, load_translator, round_to_half, save_translator
from course_lib.text import EOS, SPECIALS
from tools.notebooks import editions

SIZES = {"width": 12, "heads": 3, "layers": 2, "feedforward": 20}


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
    config["sizes"]["feedforward"] = 24
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


def test_the_shipped_files_are_small():
    """Fails if weights and vocabulary together are larger than 4 MB."""
    assert sum(path.stat().st_size for path in pretrained.WEIGHTS.iterdir()) < 4e6


@pytest.mark.slow
def test_the_wheel_holds_the_weights(tmp_path):
    """Fails if a reader who installs the wheel gets no weights."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=editions.ROOT, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for name in ("config.json", "model.safetensors"):
        assert f"course_lib/weights/translator/{name}" in names
