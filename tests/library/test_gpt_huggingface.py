"""GPT against transformers' GPT-2, in float64: the same files, the same numbers, the same tokens."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.attention import attention_backend, record_attention
from course_lib.bert import BERT
from course_lib.generate import generate, top_k_top_p
from course_lib.gpt import GPT, GPTConfig
from course_lib.positional import RoPE
from course_lib.utils import gpt2_checkpoint, huggingface, number_of_parameters
from tests.helpers import huggingface as helpers
from tests.helpers.huggingface import build, reference, save_gradients

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SHAPES = {  # V, context, D, N, H, F
    "usual": (37, 23, 12, 2, 3, None),
    "narrow": (29, 17, 10, 3, 5, 7),
    "one head": (41, 19, 9, 1, 1, 33),
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@pytest.fixture(autouse=True)
def float64():
    """Both libraries make their models in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def gpt2(shape=SHAPES["usual"], **settings):
    """transformers' model of a shape, its norms with an epsilon that shows."""
    V, context, D, N, H, hidden = shape
    config = reference().GPT2Config(
        vocab_size=V, n_positions=context, n_embd=D, n_layer=N, n_head=H, n_inner=hidden, layer_norm_epsilon=0.01,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, **settings,
    )  # fmt: skip
    return build("GPT2LMHeadModel", config)


def pair(folder, shape=SHAPES["usual"], **settings):
    """transformers' model and ours, read from its files."""
    theirs = gpt2(shape, **settings)
    theirs.save_pretrained(folder)
    return theirs, GPT.from_pretrained(folder)


def tokens(rows, length, vocab_size, seed=0):
    return torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(seed))


# --- the network ----------------------------------------------------------------


@every_shape
@pytest.mark.parametrize("backend", ["sdpa", "math"])
def test_logits(tmp_path, shape, backend):
    """Fails if a weight goes to the wrong place or stays transposed, or a layer computes something else."""
    theirs, ours = pair(tmp_path, shape)
    ids = tokens(2, shape[1], shape[0])  # the whole context
    wanted = theirs(ids).logits
    assert wanted.std() > 1
    with attention_backend(backend):
        torch.testing.assert_close(ours(ids), wanted, **EXACT)


@pytest.mark.parametrize(("theirs", "ours"), [("gelu_new", "gelu_tanh"), ("gelu", "gelu")])
def test_activations(tmp_path, theirs, ours):
    """Fails if the exact GELU is taken for its approximation; they differ by 1e-3."""
    reference_model, model = pair(tmp_path, activation_function=theirs)
    assert model.config.activation == ours
    ids = tokens(2, 11, 37)
    torch.testing.assert_close(model(ids), reference_model(ids).logits, **EXACT)


@every_shape
def test_gradients(tmp_path, shape):
    """Fails if the gradient of the mean loss differs in any weight; that of the table comes from both its ends."""
    theirs, ours = pair(tmp_path / "model", shape)
    ids = tokens(3, 11, shape[0])
    for logits in (theirs(ids).logits, ours(ids)):  # their own loss is rounded to float32
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    wanted = dict(GPT.from_pretrained(save_gradients(theirs, tmp_path / "gradients")).named_parameters())
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        used = slice(11) if "position" in name else slice(None)
        assert gradient[used].abs().max() > 1e-6, name
        torch.testing.assert_close(gradient, wanted[name].detach(), **EXACT)


def test_attention_weights(tmp_path):
    """Fails if the maps belong to other heads or layers, or a later token is seen."""
    theirs, ours = pair(tmp_path)
    ids = tokens(2, 7, 37)
    wanted = theirs(ids, output_attentions=True).attentions
    with record_attention(ours) as maps:
        ours(ids)
    torch.testing.assert_close(list(maps.values()), list(wanted), **EXACT)


def test_what_we_save_transformers_reads(tmp_path):
    """Fails if transformers misses one of our tensors, finds one that it does not know, or computes other logits."""
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=31, max_len=13, d_model=12, num_layers=2, num_heads=3, dim_feedforward=17)
    ours = GPT(config).eval()
    ours.save_pretrained(tmp_path)
    theirs, report = reference().GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    ids = tokens(2, 13, 31)
    torch.testing.assert_close(theirs.eval()(ids).logits, ours(ids), **EXACT)
    again = GPT.from_pretrained(tmp_path)
    assert again.config == config
    torch.testing.assert_close(again(ids), ours(ids), rtol=0, atol=0)


def test_the_form_of_the_published_files(tmp_path):
    """Fails if names without "transformer.", stored masks or the table stored twice, as on the hub, are refused."""
    theirs, _ = pair(tmp_path / "new")
    config, tensors = huggingface.read(tmp_path / "new")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 23, 23).tril() for layer in range(2)}
    old |= {"h.0.attn.masked_bias": torch.tensor(-1e4), "lm_head.weight": old["wte.weight"]}
    huggingface.save(tmp_path / "old", {name: config[name] for name in config if name != "n_inner"}, old)
    ids = tokens(2, 7, 37)
    torch.testing.assert_close(GPT.from_pretrained(tmp_path / "old")(ids), theirs(ids).logits, **EXACT)


def test_float32_and_evaluation(tmp_path):
    """Fails if float32 weights are changed on the way, or dropout stays on."""
    torch.set_default_dtype(torch.float32)
    theirs, ours = pair(tmp_path, **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.5))
    assert not ours.training
    assert ours.config.dropout == 0.5
    ids = tokens(2, 11, 37)
    torch.testing.assert_close(ours.double()(ids), theirs.double()(ids).logits, **EXACT)


def test_one_dropout_is_not_read_for_three(tmp_path):
    """Fails if a checkpoint with three dropouts is trained on with the first of them, in silence."""
    gpt2(resid_pdrop=0.5).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"'resid_pdrop': 0.5, 'embd_pdrop': 0.1, 'attn_pdrop': 0.1}, this model one"):
        GPT.from_pretrained(tmp_path)
    assert GPT.from_pretrained(tmp_path, dropout=0.2).config.dropout == 0.2


# --- writing --------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[1] * 11, [4, 1, 1, 5], [11], [10, 1]])
def test_cached_logits_at_every_step(tmp_path, chunks):
    """Fails if keys, values or positions of earlier tokens are off by one at any step, however the text is cut."""
    theirs, ours = pair(tmp_path)
    ids = tokens(2, 11, 37)
    wanted = theirs(ids).logits
    caches, parts = ours.start(2)["kv_caches"], []
    for part in ids.split(chunks, 1):
        parts.append(ours(part, caches))
    torch.testing.assert_close(torch.cat(parts, 1), wanted, **EXACT)


@pytest.mark.parametrize("use_cache", [True, False])
@every_shape
def test_logits_while_writing(tmp_path, shape, use_cache, monkeypatch):
    """Fails if the logits of any step of greedy writing differ from those of `transformers.generate`.

    It hands its logits out in float32, so they are compared in float64 with those of the whole text too.
    """
    theirs, ours = pair(tmp_path, shape)
    prompt, steps = tokens(1, 4, shape[0]), 12
    seen = []

    def step(ids, state):
        logits, state = GPT.step(ours, ids, state)
        seen.append(logits)
        return logits, state

    monkeypatch.setattr(ours, "step", step)
    texts = generate(ours, prompt.tolist(), steps, top_k=1, use_cache=use_cache)
    wanted = theirs.generate(
        prompt, max_new_tokens=steps, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    assert texts == wanted.sequences[:, 4:].tolist()
    torch.testing.assert_close(torch.stack(seen).float(), torch.stack(wanted.logits))
    whole = theirs(wanted.sequences[:, :-1]).logits[:, 3:]
    torch.testing.assert_close(torch.stack(seen, 1), whole, **EXACT)


@pytest.mark.parametrize("use_cache", [True, False])
@every_shape
def test_greedy_with_prompts_of_different_lengths(tmp_path, shape, use_cache):
    """Fails if a row's tokens depend on the other rows; transformers pads on the left and masks."""
    theirs, ours = pair(tmp_path, shape)
    prompts = [tokens(1, length, shape[0], seed=length)[0].tolist() for length in (5, 1, 7, 5, 2)]
    padded = torch.tensor([[0] * (7 - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (7 - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    wanted = theirs.generate(padded, attention_mask=mask, max_new_tokens=9, do_sample=False)[:, 7:].tolist()
    assert len({tuple(row) for row in wanted}) > 1
    assert generate(ours, prompts, 9, top_k=1, use_cache=use_cache) == wanted


def test_stopping(tmp_path):
    """Fails if a row goes on after the stop token, or ends with another row's; transformers fills up with padding."""
    theirs, ours = pair(tmp_path)
    prompts = tokens(4, 3, 37, seed=5)
    free = theirs.generate(prompts, max_new_tokens=10, do_sample=False)[:, 3:].tolist()
    stop = free[0][4]
    wanted = theirs.generate(prompts, max_new_tokens=10, do_sample=False, eos_token_id=stop, pad_token_id=36)[:, 3:]
    wanted = [row[: row.index(stop) + 1] if stop in row else row for row in wanted.tolist()]
    assert len({len(row) for row in wanted}) > 1
    assert generate(ours, prompts.tolist(), 10, top_k=1, eos_id=stop) == wanted


# --- filters --------------------------------------------------------------------

LOGITS = {
    "random": torch.randn(5, 31, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3,
    "ties": torch.randint(-2, 3, (5, 31), generator=torch.Generator().manual_seed(1)).double(),
    "all equal": torch.zeros(2, 7, dtype=torch.float64),
    "extreme": torch.tensor([[1e4, 0.0, -1e4, 3.0], [-1e4, -1e4, -1e4, 5.0], [700, 700.5, -700, 699.0]]).double(),
    "already cut": torch.tensor([[1.0, -torch.inf, 2.0, -torch.inf, 0.5]]).double(),
    "one token": torch.tensor([[3.0]]).double(),
}
every_logits = pytest.mark.parametrize("logits", LOGITS.values(), ids=LOGITS)


@every_logits
@pytest.mark.parametrize("k", [1, 2, 5, 31, 100])
def test_top_k(logits, k):
    """Fails if another number of tokens is left, or equals of the k-th are treated otherwise."""
    wanted = reference().TopKLogitsWarper(k)(None, logits)
    torch.testing.assert_close(top_k_top_p(logits, top_k=k), wanted, rtol=0, atol=0)


@every_logits
@pytest.mark.parametrize("p", [1e-9, 0.1, 0.3, 0.51, 0.9, 0.999])
def test_top_p(logits, p):
    """Fails if a token too many or too few is left. Which of equal tokens is a matter of sorting, so values count."""
    wanted = reference().TopPLogitsWarper(p)(None, logits)
    found = top_k_top_p(logits, top_p=p)
    torch.testing.assert_close(found.sort(-1).values, wanted.sort(-1).values, rtol=0, atol=0)
    left = found > -torch.inf
    assert torch.equal(found[left], logits[left])
    if all(len(set(row)) == len(row) for row in logits.tolist()):
        assert torch.equal(found, wanted)


def test_filters_together():
    """Fails if temperature, top-k and top-p are applied in another order than transformers does."""
    logits = LOGITS["random"]
    chain = reference().LogitsProcessorList()
    chain.extend([reference().TemperatureLogitsWarper(0.7), reference().TopKLogitsWarper(9)])
    chain.append(reference().TopPLogitsWarper(0.8))
    wanted = chain(None, logits)
    assert 1 < (wanted[0] > -torch.inf).sum() < 9
    torch.testing.assert_close(top_k_top_p(logits / 0.7, 9, 0.8), wanted, rtol=0, atol=0)


# --- sizes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes", "published"),
    [
        ("gpt2", (768, 12, 12), 124_439_808),
        ("gpt2-medium", (1024, 24, 16), 354_823_168),
        ("gpt2-large", (1280, 36, 20), 774_030_080),
        ("gpt2-xl", (1600, 48, 25), 1_557_611_200),
    ],
)
def test_published_sizes(name, sizes, published):
    """Fails if a weight is missing, stands twice, or a size is another than in GPT-2; no memory is taken."""
    D, N, H = sizes
    with torch.device("meta"):
        ours = GPT(GPTConfig.from_name(name))
        theirs = reference().GPT2LMHeadModel(reference().GPT2Config(n_embd=D, n_layer=N, n_head=H))
    assert number_of_parameters(ours) == theirs.num_parameters() == published
    assert ours.config == GPTConfig(**gpt2_checkpoint.read_settings(theirs.config.to_dict()))


# --- checkpoints that do not fit ------------------------------------------------


def damaged(folder, change, **settings):
    """A checkpoint of transformers' with its tensors and its sizes changed."""
    return helpers.damaged(gpt2(), folder, change, **settings)


def test_everything_that_does_not_fit_is_named(tmp_path):
    """Fails if the first fault hides the others."""

    def change(tensors):
        del tensors["transformer.h.1.ln_2.bias"], tensors["transformer.wpe.weight"]
        tensors["transformer.h.0.mlp.c_fc.weight"] = torch.ones(12, 47)
        tensors["transformer.h.1.mlp.c_fc.weight"] = torch.ones(48)
        tensors["transformer.h.2.ln_1.weight"] = torch.ones(12)

    with pytest.raises(ValueError, match="does not fit GPT") as caught:
        GPT.from_pretrained(damaged(tmp_path, change))
    assert str(caught.value).split("\n  ") == [
        f"{tmp_path} does not fit GPT:",
        "missing: positions (23, 12)",
        "missing: blocks.1.ln2.bias (12,)",
        "unexpected: h.2.ln_1.weight (12,)",
        "misshapen: blocks.0.mlp.0.weight is (47, 12), wanted (48, 12)",
        "misshapen: blocks.1.mlp.0.weight is (48,), wanted (48, 12)",
    ]


def test_a_vocabulary_of_another_size(tmp_path):
    """Fails if a table with more rows than the sizes say is cut without a word."""
    with pytest.raises(ValueError, match=r"misshapen: embedding.weight is \(37, 12\), wanted \(36, 12\)"):
        GPT.from_pretrained(damaged(tmp_path, lambda tensors: None, vocab_size=36))


def test_an_output_layer_of_its_own(tmp_path):
    """Fails if an output layer that is not the table is dropped: the logits would be others."""
    change = lambda tensors: tensors.update({"lm_head.weight": torch.ones(37, 12)})  # noqa: E731
    with pytest.raises(ValueError, match=r"an output layer of its own, .* but config.json ties it"):
        GPT.from_pretrained(damaged(tmp_path / "tied", change))
    ours = GPT.from_pretrained(damaged(tmp_path / "untied", change, tie_word_embeddings=False))
    assert (ours.head.weight == 1).all()
    assert (ours.embedding.weight != 1).all()


def test_an_untied_model_there_and_back(tmp_path):
    """Fails if the output layer is lost on the way, in either library."""
    theirs, ours = pair(tmp_path / "theirs", tie_word_embeddings=False)
    ids = tokens(2, 11, 37)
    torch.testing.assert_close(ours(ids), theirs(ids).logits, **EXACT)
    with torch.no_grad():
        ours.head.weight.mul_(2)
    ours.save_pretrained(tmp_path / "ours")
    again = reference().GPT2LMHeadModel.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(again(ids).logits, ours(ids), **EXACT)
    torch.testing.assert_close(GPT.from_pretrained(tmp_path / "ours")(ids), ours(ids), **EXACT)


@pytest.mark.parametrize(
    ("options", "position", "message"),
    [
        ({"bias": False}, None, "GPT-2 has GELU, layernorm and biases, this model .*bias=False"),
        ({"norm": "rmsnorm"}, None, "this model .*norm='rmsnorm'"),
        ({"activation": "swiglu"}, None, "this model .*activation='swiglu'"),
        ({}, RoPE(4), "GPT-2 has a learned table of positions, this model RoPE"),
    ],
)
def test_what_is_no_gpt2_is_not_saved_as_one(tmp_path, options, position, message):
    """Fails if a checkpoint is written that transformers would compute otherwise."""
    with pytest.raises(ValueError, match=message):
        GPT(GPTConfig(31, 13, 12, 2, 3, **options), position).save_pretrained(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {"activation_function": "relu"},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"add_cross_attention": True},
    ],
)
def test_a_network_that_we_do_not_compute(tmp_path, settings):
    """Fails if a setting that changes the numbers is passed over."""
    (name,) = settings
    with pytest.raises(ValueError, match=f"config.json has {name} {next(iter(settings.values()))!r}, wanted"):
        GPT.from_pretrained(damaged(tmp_path, lambda tensors: None, **settings))


def test_sizes_that_are_missing(tmp_path):
    """Fails if a config.json without sizes ends in a KeyError, or the first one that is missing hides the others."""
    gpt2().save_pretrained(tmp_path)
    _, tensors = huggingface.read(tmp_path)
    huggingface.save(tmp_path, {"model_type": "gpt2", "n_layer": 2, "n_head": 3}, tensors)
    wanted = ("vocab_size", "n_positions", "n_embd")
    with pytest.raises(ValueError, match="^" + "; ".join(rf"config\.json has no {name}" for name in wanted) + "$"):
        GPT.from_pretrained(tmp_path)


def test_the_wrong_kind_of_model(tmp_path):
    """Fails if a GPT-2 is loaded into a BERT, or a traceback about its tensors hides why not."""
    gpt2().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json has model_type 'gpt2', wanted 'bert'"):
        BERT.from_pretrained(tmp_path)
