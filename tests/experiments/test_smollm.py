"""The recorded run of chapter 14 with a published Llama, on a miniature of it."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from course_lib.datasets import DataError
from course_lib.experiments import smollm
from course_lib.llama import Llama, LlamaConfig
from course_lib.notebook import ledger
from course_lib.utils import huggingface

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A folder with a tiny Llama and a tokenizer of single bytes, where the published model is looked for."""
    pytest.importorskip("transformers", reason="the run compares with Hugging Face's Llama")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    torch.manual_seed(0)
    llama = Llama(
        LlamaConfig(len(pieces), 400, 12, num_layers=2, num_heads=6, num_kv_heads=2, dim_feedforward=20, head_dim=4)
    )
    folder = tmp_path / "smollm2"
    llama.save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    return folder


def test_the_run_records_each_text_and_the_difference_from_hugging_face(model):
    """Fails if a prompt is missing, a text is not the likeliest continuation, or rotations pair other entries."""
    found = smollm.smollm_writes(0, most=5)["results"]
    assert list(found) == ["continued", "bare 0", "framed 0", "bare 1", "framed 1", "logits"]
    llama, tokenizer = Llama.from_pretrained(model), huggingface.tokenizer(model)
    for name in list(found)[:-1]:
        ids = tokenizer.encode(found[name]["prompt"]).ids
        written = []
        while len(written) < 5 and SPECIAL.index("<|im_end|>") not in written:
            written.append(llama(torch.tensor([ids + written]))[0, -1].argmax().item())
        assert found[name]["text"] == tokenizer.decode(written, skip_special_tokens=False)
        assert found[name]["tokens"] == len(tokenizer.encode(found[name]["text"]).ids)
    # Hugging Face computes the angles in 32 bits, whose numbers are right to 6e-8 of an angle of up to some 200
    assert found["logits"]["largest_difference"] < 1e-4 * found["logits"]["standard_deviation"]
    assert found["logits"]["weights"] == smollm.SMOLLM


def test_a_text_stops_where_the_turn_ends(model):
    """Fails if the end of a turn does not end the text, or is cut off it."""
    llama, tokenizer = Llama.from_pretrained(model), huggingface.tokenizer(model)
    with torch.no_grad():
        llama.head.weight.zero_()
        llama.norm.weight.zero_()  # equal logits: the first token is the likeliest, <|endoftext|>
    assert smollm.continued(llama, tokenizer, "abc", most=3) == 3 * "<|endoftext|>"
    llama.head.weight = torch.nn.Parameter(torch.zeros_like(llama.head.weight))  # no longer the table
    with torch.no_grad():
        llama.head.weight[2] = 1  # <|im_end|>
        llama.norm.weight.fill_(1)
        sign = llama.features(torch.tensor([tokenizer.encode("abc").ids]))[0, -1].sum().sign()
        llama.head.weight.mul_(sign)
    assert smollm.continued(llama, tokenizer, "abc", most=3) == "<|im_end|>"


def test_without_the_model_the_message_names_what_fetches_it(tmp_path, monkeypatch):
    """Fails if the reader is sent to BERT's loader."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"call Llama\.from_pretrained"):
        smollm.find_smollm()


def test_the_record_is_what_the_chapter_shows():
    """Fails if the record is of another run, or its logits are not those of Hugging Face."""
    rows = ledger.load("smollm-writes")["runs"][0]["results"]
    assert [rows[f"framed {n}"]["prompt"] for n in range(2)] == [smollm.in_chat_form(q) for q in smollm.QUESTIONS]
    assert rows["logits"]["parameters"] == 134_515_008
    assert rows["logits"]["largest_difference"] < 1e-4 * rows["logits"]["standard_deviation"]
    assert smollm.recorded("continued") == rows["continued"]["text"]
