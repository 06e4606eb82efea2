"""Llama against transformers' LlamaForCausalLM, in float64: the same files, the same numbers, the same tokens.

transformers rounds norms, angles and attention weights to float32 inside; told that float32 is float64, it does not.
"""

import importlib
import json

import pytest
import torch
import torch.nn.functional as F

from course_lib.bert import BERT
from course_lib.generate import generate
from course_lib.llama import Llama, LlamaConfig, slow_down
from course_lib.utils import huggingface, llama_checkpoint, number_of_parameters
from course_lib.utils.huggingface import tokenizer
from tests.helpers import huggingface as helpers
from tests.helpers.huggingface import build, reference, save_gradients

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 60}
PLAIN, LLAMA3 = {"rope_type": "default", "rope_theta": 50.0}, {"rope_type": "llama3", "rope_theta": 50.0} | SCALING
CASES = {  # V, context, D, N, H, H_kv, F, K, and what else differs
    "six share two": ((37, 23, 24, 2, 6, 2, 20, None), {}),
    "six share one": ((29, 17, 18, 3, 6, 1, 11, 8), {"tie_word_embeddings": True, "rope_parameters": PLAIN}),
    "each its own": ((41, 19, 12, 1, 6, 6, 33, 4), {"rms_norm_eps": 1e-6, "rope_parameters": PLAIN}),
    "one head": ((31, 21, 10, 2, 1, 1, 13, None), {"tie_word_embeddings": True}),
    "slowed": ((37, 23, 12, 2, 4, 2, 20, 8), {"rope_parameters": LLAMA3}),
}
every_case = pytest.mark.parametrize("case", CASES)


class Wide:
    """The module torch, in which float32 is float64."""

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    """Both libraries make their models in torch's default dtype, and transformers' Llama computes in it alone."""
    reference()
    for module in ("models.llama.modeling_llama", "modeling_rope_utils"):
        monkeypatch.setattr(importlib.import_module(f"transformers.{module}"), "torch", Wide())
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def llama(case="six share two", **changed):
    """transformers' model of a case, its norms with an epsilon that shows."""
    (V, context, D, N, H, H_kv, hidden, K), settings = CASES[case]
    sizes = {
        "vocab_size": V, "max_position_embeddings": context, "hidden_size": D, "num_hidden_layers": N,
        "num_attention_heads": H, "num_key_value_heads": H_kv, "intermediate_size": hidden, "head_dim": K,
        "rms_norm_eps": 0.02, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,  # one with padding has a row without gradient
    }  # fmt: skip
    config = reference().LlamaConfig(**sizes | settings | changed)
    return build("LlamaForCausalLM", config)


def pair(folder, case="six share two", **changed):
    """transformers' model and ours, read from its files."""
    theirs = llama(case, **changed)
    theirs.save_pretrained(folder)
    return theirs, Llama.from_pretrained(folder)


def tokens(rows, length, vocab_size, seed=0):
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


# --- the network ----------------------------------------------------------------


@every_case
def test_logits(tmp_path, case):
    """Fails if a weight goes to the wrong place, other entries turn together, or a layer computes something else."""
    theirs, ours = pair(tmp_path, case)
    V, context = CASES[case][0][:2]
    ids = tokens(2, context, V)  # the whole context
    wanted = theirs(ids).logits
    assert wanted.std() > 1
    torch.testing.assert_close(ours(ids), wanted, **EXACT)
    assert not ours.training


@every_case
def test_gradients(tmp_path, case):
    """Fails if the gradient of the mean loss differs in any weight; a tied table has that of both its ends."""
    theirs, ours = pair(tmp_path / "model", case)
    ids = tokens(3, 11, CASES[case][0][0])
    for logits in (theirs(ids).logits, ours(ids)):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    wanted = dict(Llama.from_pretrained(save_gradients(theirs, tmp_path / "gradients")).named_parameters())
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        assert gradient.abs().max() > 1e-6, name
        torch.testing.assert_close(gradient, wanted[name].detach(), **EXACT)


@pytest.mark.parametrize("changed", [{"rope_theta": 50.0}, {"rms_norm_eps": 1e-6}, {"rope_theta": 500000.0}])
def test_a_setting_that_is_passed_over_would_be_seen(tmp_path, changed):
    """Fails if the comparison above could not tell this base, or this epsilon, from another."""
    theirs, _ = pair(tmp_path / "before")
    config, tensors = huggingface.read(tmp_path / "before")
    config["rope_parameters"]["rope_theta"] = changed.get("rope_theta", 10000.0)
    huggingface.save(tmp_path / "after", config | changed, tensors)
    ids = tokens(2, 23, 37)
    assert (Llama.from_pretrained(tmp_path / "after")(ids) - theirs(ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize("scaling", [SCALING, llama_checkpoint.LLAMA_3_2, SCALING | {"high_freq_factor": 1.5}])
def test_slowed_angles(scaling):
    """Fails if a pair is slowed by another factor than in transformers."""
    width, base = 32, 500000.0
    config = reference().LlamaConfig(
        hidden_size=2 * width,
        num_attention_heads=2,
        rope_parameters={"rope_type": "llama3", "rope_theta": base} | scaling,
    )
    rope_utils = importlib.import_module("transformers.modeling_rope_utils")
    wanted, attention_factor = rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config)
    found = base ** (-torch.arange(0, width, 2) / width) * slow_down(width, base, **scaling)
    torch.testing.assert_close(found, wanted, **EXACT)
    assert attention_factor == 1


@every_case
def test_what_we_save_transformers_reads(tmp_path, case):
    """Fails if transformers misses one of our tensors, finds one that it does not know, or computes other logits."""
    torch.manual_seed(0)
    (V, context, D, N, H, H_kv, hidden, K), settings = CASES[case]
    scaling = SCALING if case == "slowed" else None
    tied = settings.get("tie_word_embeddings", False)
    config = LlamaConfig(V, context, D, N, H, H_kv, hidden, K, 300.0, scaling, 0.03, tied)
    ours = Llama(config).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    ours.save_pretrained(tmp_path)
    theirs, report = reference().LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    ids = tokens(2, context, V)
    torch.testing.assert_close(theirs.eval()(ids).logits, ours(ids), **EXACT)
    again = Llama.from_pretrained(tmp_path)
    assert again.config == config
    torch.testing.assert_close(again(ids), ours(ids), rtol=0, atol=0)


@every_case
def test_there_and_back(tmp_path, case):
    """Fails if a tensor of transformers' comes back changed, or a setting is lost on the way."""
    theirs, ours = pair(tmp_path / "theirs", case)
    ours.save_pretrained(tmp_path / "ours")
    (_, before), (config, after) = (huggingface.read(tmp_path / name) for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for name in before:
        assert torch.equal(before[name], after[name]), name
    again = reference().LlamaConfig.from_pretrained(tmp_path / "ours").to_dict()
    wanted = theirs.config.to_dict()
    changed = {name for name in wanted if again.get(name) != wanted[name]}
    assert changed <= {"dtype", "_name_or_path"}, changed
    assert config["model_type"] == "llama"


def test_the_form_of_the_published_files(tmp_path):
    """Fails if the older names of settings, the table of angles in the weights, or 16-bit weights are refused."""
    theirs, _ = pair(tmp_path / "new", "slowed")
    config, tensors = huggingface.read(tmp_path / "new")
    config |= {"rope_theta": 50.0, "rope_scaling": {"type": "llama3"} | SCALING, "head_dim": 8, "pretraining_tp": 1}
    for name in ("rope_parameters", "attention_bias", "mlp_bias", "tie_word_embeddings"):
        del config[name]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    huggingface.save(tmp_path / "old", config, tensors)
    ids = tokens(2, 23, 37)
    torch.testing.assert_close(Llama.from_pretrained(tmp_path / "old")(ids), theirs(ids).logits, **EXACT)
    half = {name: x.bfloat16() for name, x in tensors.items()}
    huggingface.save(tmp_path / "half", config, half)
    ours = Llama.from_pretrained(tmp_path / "half")
    assert torch.equal(ours.embedding.weight, half["model.embed_tokens.weight"].to(ours.embedding.weight))


def test_settings_that_old_files_leave_out(tmp_path):
    """Fails if a default is another than transformers': keys of their own, K = D / H, base, epsilon, untied."""
    theirs = llama(
        "each its own", num_key_value_heads=None, head_dim=None, rope_parameters=None, tie_word_embeddings=False
    )
    theirs.save_pretrained(tmp_path)
    config, tensors = huggingface.read(tmp_path)
    needed = ("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers")
    huggingface.save(tmp_path, {name: config[name] for name in (*needed, "num_attention_heads")}, tensors)
    ids = tokens(2, 19, 41)
    torch.testing.assert_close(Llama.from_pretrained(tmp_path)(ids), theirs(ids).logits, **EXACT)


def test_weights_in_several_files(tmp_path):
    """Fails if one of the files that an index lists is left out."""
    theirs = llama()
    theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = tokens(2, 23, 37)
    torch.testing.assert_close(Llama.from_pretrained(tmp_path)(ids), theirs(ids).logits, **EXACT)


@pytest.mark.parametrize("name", llama_checkpoint.PUBLISHED)
def test_published_sizes(name):
    """Fails if what we write of a published model's sizes makes another network in transformers; no memory is taken."""
    config = LlamaConfig.from_name(name)
    settings = llama_checkpoint.write_settings(config)
    with torch.device("meta"):
        theirs = reference().LlamaForCausalLM(reference().LlamaConfig(**settings))
        assert number_of_parameters(Llama(config)) == theirs.num_parameters()
    again = LlamaConfig(**llama_checkpoint.read_settings(theirs.config.to_dict()))
    assert {**vars(again), "head_dim": None} == vars(config)


# --- writing --------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[1] * 11, [4, 1, 1, 5], [11], [10, 1]])
@every_case
def test_cached_logits_at_every_step(tmp_path, case, chunks):
    """Fails if keys, values or angles of earlier tokens are off by one at any step, however the text is cut."""
    theirs, ours = pair(tmp_path, case)
    ids = tokens(2, 11, CASES[case][0][0])
    caches = ours.start(2)["kv_caches"]
    parts = [ours(part, caches) for part in ids.split(chunks, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), theirs(ids).logits, **EXACT)


@pytest.mark.parametrize("use_cache", [True, False])
@every_case
def test_greedy_with_prompts_of_different_lengths(tmp_path, case, use_cache):
    """Fails if a token differs from `transformers.generate`'s, or a row's depend on the other rows."""
    theirs, ours = pair(tmp_path, case)
    V = CASES[case][0][0]
    prompts = [tokens(1, length, V, seed=length)[0].tolist() for length in (5, 1, 7, 5, 2)]
    padded = torch.tensor([[0] * (7 - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (7 - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    wanted = theirs.generate(padded, attention_mask=mask, max_new_tokens=9, do_sample=False)[:, 7:].tolist()
    assert len({tuple(row) for row in wanted}) > 1
    assert generate(ours, prompts, 9, top_k=1, use_cache=use_cache) == wanted


# --- checkpoints that do not fit ------------------------------------------------


def damaged(folder, change=lambda tensors: None, case="six share two", **settings):
    """A checkpoint of transformers' with its tensors and its sizes changed."""
    return helpers.damaged(llama(case), folder, change, **settings)


def test_everything_that_does_not_fit_is_named(tmp_path):
    """Fails if the first fault hides the others."""

    def change(tensors):
        del tensors["model.layers.1.input_layernorm.weight"]
        tensors["model.layers.0.self_attn.q_proj.weight"] = torch.ones(23, 24)
        tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(20)
        tensors["model.layers.2.mlp.up_proj.weight"] = torch.ones(20, 24)
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(24)

    with pytest.raises(ValueError, match="does not fit Llama") as caught:
        Llama.from_pretrained(damaged(tmp_path, change))
    assert str(caught.value).split("\n  ") == [
        f"{tmp_path} does not fit Llama:",
        "missing: blocks.1.norm1.weight (24,)",
        "unexpected: model.layers.0.self_attn.q_proj.bias (24,)",
        "unexpected: model.layers.2.mlp.up_proj.weight (20, 24)",
        "misshapen: blocks.0.attn.q_proj.weight is (23, 24), wanted (24, 24)",
        "misshapen: blocks.0.mlp.up_proj.weight is (20,), wanted (20, 24)",
    ]


def test_an_output_layer_of_its_own(tmp_path):
    """Fails if an output layer that is not the table is dropped, or one that is the table is refused."""
    with pytest.raises(ValueError, match=r"an output layer of its own, .* but config.json ties it"):
        Llama.from_pretrained(damaged(tmp_path / "untied", tie_word_embeddings=True))
    change = lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"]})  # noqa: E731
    ours = Llama.from_pretrained(damaged(tmp_path / "twice", change, tie_word_embeddings=True))
    assert ours.head.weight is ours.embedding.weight


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_bias": True}, "config.json has attention_bias True, wanted False"),
        ({"mlp_bias": True}, "config.json has mlp_bias True, wanted False"),
        ({"hidden_act": "gelu"}, "config.json has hidden_act 'gelu', wanted 'silu' or 'swish'"),
        ({"attention_dropout": 0.1}, "config.json has attention_dropout 0.1, wanted 0"),
        ({"sliding_window": 4096}, "config.json has sliding_window 4096, wanted None"),
        ({"quantization_config": {"bits": 4}}, "config.json has quantization_config {'bits': 4}, wanted None"),
        ({"model_type": "mistral"}, "config.json has model_type 'mistral', wanted 'llama'"),
        ({"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5, wanted 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5, wanted 1"),
        ({"rope_parameters": [10000.0]}, r"config.json has \[10000.0\] for its rotary positions, wanted an object"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling must be a dict of factor, low_freq",
        ),
        *(
            ({form: {key: kind, "factor": 2.0}}, f"rotary positions of type '{kind}', wanted 'default' or 'llama3'")
            for kind in ("linear", "dynamic", "yarn", "longrope")
            for form, key in (("rope_parameters", "rope_type"), ("rope_scaling", "type"))
        ),
    ],
)
def test_a_network_that_we_do_not_compute(tmp_path, settings, message):
    """Fails if a setting that changes the numbers is passed over."""
    _, tensors = huggingface.read(damaged(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    if "rope_scaling" in settings:
        del config["rope_parameters"]
    huggingface.save(tmp_path, config | settings, tensors)
    with pytest.raises(ValueError, match=message):
        Llama.from_pretrained(tmp_path)


def test_sizes_that_are_missing(tmp_path):
    """Fails if a config.json without sizes ends in a KeyError, or the first one that is missing hides the others."""
    _, tensors = huggingface.read(damaged(tmp_path))
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6}
    huggingface.save(tmp_path, {"model_type": "llama"} | sizes, tensors)
    wanted = ("vocab_size", "max_position_embeddings", "intermediate_size")
    with pytest.raises(ValueError, match="^" + "; ".join(rf"config\.json has no {name}" for name in wanted) + "$"):
        Llama.from_pretrained(tmp_path)


def test_the_wrong_kind_of_model(tmp_path):
    """Fails if a Llama is loaded into a BERT, or a traceback about its tensors hides why not."""
    llama().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json has model_type 'llama', wanted 'bert'"):
        BERT.from_pretrained(tmp_path)


# --- its tokenizer --------------------------------------------------------------


def byte_level(folder):
    """A tokenizer as Llama 3's: bytes joined pair by pair, the begin of the text put in front of every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the llama and the other llamas"] * 3, trainer)
    made.post_processor = processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=[(special[0], 0)])
    made.enable_truncation(3)
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))


def test_ids_and_text_back(tmp_path):
    """Fails if ids differ from those of transformers, a text comes back changed, or is cut at the stored length."""
    byte_level(tmp_path)
    ours = tokenizer(tmp_path)
    theirs = reference().PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in ("the llama", "  two  spaces\nand a line", "naïve 🦙 llamas", ""):
        ids = ours.encode(text).ids
        assert ids == theirs(text, truncation=False)["input_ids"]
        assert ids[0] == 0
        assert ours.decode(ids) == text


def test_a_tokenizer_that_is_not_there(tmp_path):
    """Fails if the message does not name the file that is wanted, and those that are there."""
    (tmp_path / "tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(
        ValueError, match=r"has no tokenizer.json, .* it holds no tokenizer; it has \['tokenizer.model'\]"
    ):
        tokenizer(tmp_path)
