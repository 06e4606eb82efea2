"""BERT and its heads against transformers', in float64: the same files, the same numbers."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.attention import attention_backend, record_attention
from course_lib.bert import (
    BERT,
    BERTConfig,
    BERTForPreTraining,
    BERTForSequenceClassification,
    BERTForTokenClassification,
)
from course_lib.gpt import GPT
from course_lib.text import length_mask
from course_lib.utils import huggingface, number_of_parameters
from tests.helpers import huggingface as helpers
from tests.helpers.huggingface import build, reference, save_gradients

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SHAPES = {  # V, context, D, N, H, F, segment_ids
    "usual": (37, 23, 12, 2, 3, 20, 2),
    "narrow": (29, 17, 10, 3, 5, 7, 4),
    "one head": (41, 19, 9, 1, 1, 33, 2),
}
LENGTHS = torch.tensor([9, 3, 16, 1, 7])
HEADS = {
    "BertForPreTraining": BERTForPreTraining,
    "BertForMaskedLM": BERTForPreTraining,
    "BertForSequenceClassification": BERTForSequenceClassification,
    "BertForTokenClassification": BERTForTokenClassification,
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
every_backend = pytest.mark.parametrize("backend", ["sdpa", "math"])
every_head = pytest.mark.parametrize("kind", HEADS)


@pytest.fixture(autouse=True)
def float64():
    """Both libraries make their models in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def sizes(shape=SHAPES["usual"], **settings):
    """transformers' configuration of a shape, with 5 classes and an epsilon that shows."""
    V, context, D, N, H, hidden, segment_ids = shape
    return reference().BertConfig(
        vocab_size=V, max_position_embeddings=context, hidden_size=D, num_hidden_layers=N, num_attention_heads=H,
        intermediate_size=hidden, type_vocab_size=segment_ids, layer_norm_eps=0.01, num_labels=5, **settings,
    )  # fmt: skip


def pair(folder, kind="BertModel", shape=SHAPES["usual"], **settings):
    """transformers' model and ours, read from its files."""
    theirs = build(kind, sizes(shape, **settings))
    theirs.save_pretrained(folder)
    return theirs, HEADS.get(kind, BERT).from_pretrained(folder)


def batch(shape=SHAPES["usual"], padded=True):
    """Ids, mask and segment_ids (B, T): random, also behind the mask. No id 0: their table never learns that row."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, shape[0], (5, 16), generator=generator)
    segment_ids = torch.randint(shape[6], (5, 16), generator=generator)
    return ids, length_mask(LENGTHS) if padded else torch.ones(5, 16, dtype=torch.bool), segment_ids


def ask(theirs, ids, mask, segment_ids, **options):
    return theirs(ids, attention_mask=mask.long(), token_type_ids=segment_ids, **options)


def outputs(theirs, inputs):
    """The logits of a head of transformers', in a tuple."""
    found = ask(theirs, *inputs)
    if hasattr(found, "seq_relationship_logits"):
        return found.prediction_logits, found.seq_relationship_logits
    return (found.logits,)


def answers(ours, inputs):
    """The logits of one of our heads, in a tuple, without those that it does not have."""
    found = ours(*inputs)
    return tuple(x for x in found if x is not None) if isinstance(found, tuple) else (found,)


def real(x, mask):
    """What belongs to real tokens: the rest of (B, T, ...) is arbitrary; (B, ...) stays whole."""
    return x[mask] if x.shape[:2] == mask.shape else x


# --- the encoder ----------------------------------------------------------------


@every_shape
@every_backend
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_vectors_of_all_layers(tmp_path, shape, backend, padded, gradients):
    """Fails if a weight goes to the wrong place, a layer computes something else, or padding is attended to."""
    theirs, ours = pair(tmp_path, shape=shape)
    ids, mask, segment_ids = batch(shape, padded)
    with torch.set_grad_enabled(gradients), attention_backend(backend):  # without gradients padding is skipped
        wanted = ask(theirs, ids, mask, segment_ids, output_hidden_states=True)
        last = ours(ids, mask if padded else None, segment_ids)
        hidden = ours.hidden(ids, mask if padded else None, segment_ids)
        pooled = ours.pool(last)
    assert wanted.last_hidden_state.std() > 0.1
    torch.testing.assert_close(last[mask], wanted.last_hidden_state[mask], **EXACT)
    torch.testing.assert_close(pooled, wanted.pooler_output, **EXACT)
    for x, y in zip(hidden, wanted.hidden_states, strict=True):
        torch.testing.assert_close(x[mask], y[mask], **EXACT)


def test_segment_ids_may_be_left_out(tmp_path):
    """Fails if a text without segment_ids is not all first segment."""
    theirs, ours = pair(tmp_path)
    ids, mask, _ = batch()
    wanted = theirs(ids, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(ours(ids, mask)[mask], wanted[mask], **EXACT)


@every_shape
def test_attention_weights(tmp_path, shape):
    """Fails if the maps belong to other heads or layers, or padding has weight."""
    theirs, ours = pair(tmp_path, shape=shape)
    ids, mask, segment_ids = batch(shape)
    wanted = ask(theirs, ids, mask, segment_ids, output_attentions=True).attentions
    with record_attention(ours) as maps:
        ours(ids, mask, segment_ids)
    for x, y in zip(maps.values(), wanted, strict=True):
        torch.testing.assert_close(x.transpose(1, 2)[mask], y.transpose(1, 2)[mask], **EXACT)


# --- the heads ------------------------------------------------------------------


@every_head
@every_shape
@every_backend
def test_logits(tmp_path, kind, shape, backend):
    """Fails if a head reads another vector, its layers differ, or the output layer is not the table."""
    theirs, ours = pair(tmp_path, kind, shape)
    inputs = batch(shape)
    with attention_backend(backend):
        found, wanted = answers(ours, inputs), outputs(theirs, inputs)
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(real(x, inputs[1]), real(y, inputs[1]), **EXACT)


def test_logits_at_chosen_places(tmp_path):
    """Fails if choosing places before the output layer gives other logits, or another order."""
    theirs, ours = pair(tmp_path, "BertForPreTraining")
    ids, mask, segment_ids = batch()
    positions = mask & (torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)) < 0.3)
    found, _ = ours(ids, mask, segment_ids, positions=positions)
    torch.testing.assert_close(found, outputs(theirs, (ids, mask, segment_ids))[0][positions], **EXACT)


@every_head
@every_shape
def test_gradients(tmp_path, kind, shape):
    """Fails if the gradient of the mean losses differs in any weight; that of the table comes from both its ends."""
    theirs, ours = pair(tmp_path / "model", kind, shape)
    inputs = batch(shape)
    for logits in (outputs(theirs, inputs), answers(ours, inputs)):
        parts = [real(x, inputs[1]) for x in logits]
        sum(F.cross_entropy(x, torch.arange(len(x)) % x.shape[-1]) for x in parts).backward()
    wanted = HEADS[kind].from_pretrained(save_gradients(theirs, tmp_path / "gradients")).state_dict()
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, gradient in found.items():
        if gradient is None:  # the pooler under a head that does not use it
            assert "pooler" in name
            assert wanted[name].abs().max() == 0
            continue
        assert gradient.abs().max() > 1e-6, name
        torch.testing.assert_close(gradient, wanted[name], **EXACT)


def test_the_encoder_of_a_model_with_a_head(tmp_path):
    """Fails if the encoder cannot be taken from a pre-trained checkpoint, as fine-tuning does."""
    theirs, _ = pair(tmp_path, "BertForPreTraining")
    ids, mask, segment_ids = batch()
    ours = BERT.from_pretrained(tmp_path)
    wanted = ask(theirs.bert, ids, mask, segment_ids)
    torch.testing.assert_close(ours(ids, mask, segment_ids)[mask], wanted.last_hidden_state[mask], **EXACT)
    torch.testing.assert_close(ours.pool(ours(ids, mask, segment_ids)), wanted.pooler_output, **EXACT)


# --- files ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("BertModel", lambda bert: bert),
        ("BertForPreTraining", BERTForPreTraining),
        ("BertForSequenceClassification", lambda bert: BERTForSequenceClassification(bert, 3)),
        ("BertForTokenClassification", lambda bert: BERTForTokenClassification(bert, 3)),
    ],
)
def test_what_we_save_transformers_reads(tmp_path, kind, head):
    """Fails if transformers misses a tensor of ours or the number of classes, or computes other numbers."""
    torch.manual_seed(0)
    config = BERTConfig(
        vocab_size=37, max_len=23, d_model=12, num_layers=2, num_heads=3, dim_feedforward=20, num_segments=2
    )
    ours = head(BERT(config)).eval()
    ours.save_pretrained(tmp_path)
    # the pooler, which transformers' token classifier has not, is ours to keep
    theirs, report = getattr(reference(), kind).from_pretrained(tmp_path, output_loading_info=True)
    surplus = {name for name in report.pop("unexpected_keys") if "pooler" not in name}
    assert not surplus
    assert not any(report.values()), report
    inputs = batch()
    theirs.set_attn_implementation("eager")
    if kind == "BertModel":
        found, wanted = (ours(*inputs),), (ask(theirs.eval(), *inputs).last_hidden_state,)
    else:
        found, wanted = answers(ours, inputs), outputs(theirs.eval(), inputs)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(real(x, inputs[1]), real(y, inputs[1]), **EXACT)
    again = type(ours).from_pretrained(tmp_path)
    assert getattr(again, "bert", again).config == config
    assert again.state_dict().keys() == ours.state_dict().keys()
    for x, y in zip(answers(again, inputs), answers(ours, inputs), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_the_form_of_the_published_files(tmp_path):
    """Fails if LayerNorm's old names, stored positions or tied tensors stored twice, as on the hub, are refused."""
    theirs, _ = pair(tmp_path / "new", "BertForPreTraining")
    config, tensors = huggingface.read(tmp_path / "new")
    old = {}
    for name, tensor in tensors.items():
        old[name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    assert old.keys() != tensors.keys()
    old["bert.embeddings.position_ids"] = torch.arange(23)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = old["cls.predictions.bias"]
    huggingface.save(tmp_path / "old", config, old)
    inputs = batch()
    for x, y in zip(
        BERTForPreTraining.from_pretrained(tmp_path / "old")(*inputs), outputs(theirs, inputs), strict=True
    ):
        torch.testing.assert_close(real(x, inputs[1]), real(y, inputs[1]), **EXACT)


def test_float32_and_evaluation(tmp_path):
    """Fails if float32 weights are changed on the way, or dropout stays on."""
    torch.set_default_dtype(torch.float32)
    theirs, ours = pair(tmp_path, hidden_dropout_prob=0.5)
    assert not ours.training
    assert ours.config.dropout == 0.5
    ids, mask, segment_ids = batch()
    wanted = ask(theirs.double(), ids, mask, segment_ids).last_hidden_state
    torch.testing.assert_close(ours.double()(ids, mask, segment_ids)[mask], wanted[mask], **EXACT)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, (0.1, 0.1, 0.1)),
        ({"hidden_dropout_prob": 0.3}, (0.3, 0.1, 0.3)),
        ({"attention_probs_dropout_prob": 0.0}, (0.1, 0.0, 0.1)),
        ({"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.4, "classifier_dropout": 0.5}, (0.2, 0.4, 0.5)),
    ],
)
@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "BertForTokenClassification"])
def test_the_three_dropout_probabilities(tmp_path, kind, settings, wanted):
    """Fails if one probability is read for another, or is not written back."""
    _, ours = pair(tmp_path / "theirs", kind, **settings)
    ours.save_pretrained(tmp_path / "ours")
    for model in (ours, HEADS[kind].from_pretrained(tmp_path / "ours")):
        layer = model.bert.encoder.layers[1]
        assert (layer.dropout.p, layer.self_attn.dropout.p, model.dropout.p) == wanted
        assert (model.bert.embedding.dropout.p, layer.hidden_dropout.p) == (wanted[0], 0.0)


# --- sizes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "large", "published"),
    [
        ("bert-base-uncased", {}, 109_482_240),
        (
            "bert-large-uncased",
            {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
            335_141_888,
        ),
    ],
)
def test_published_sizes(name, large, published):
    """Fails if a weight is missing, stands twice, or a size is another than in BERT; no memory is taken."""
    with torch.device("meta"):
        ours = BERT(BERTConfig.from_name(name))
        theirs = reference().BertModel(reference().BertConfig(**large))
    assert number_of_parameters(ours) == theirs.num_parameters() == published
    assert ours.config == BERTConfig.from_huggingface(theirs.config.to_dict())


@pytest.mark.parametrize(("kind", "head"), HEADS.items())
def test_sizes_of_the_heads(tmp_path, kind, head):
    """Fails if a head has a weight too many, such as a table of its own."""
    theirs, ours = pair(tmp_path, kind)
    assert number_of_parameters(ours) == theirs.num_parameters()


# --- checkpoints that do not fit ------------------------------------------------


def damaged(folder, change, kind="BertForPreTraining", **settings):
    """A checkpoint of transformers' with its tensors and its sizes changed."""
    return helpers.damaged(build(kind, sizes()), folder, change, **settings)


def test_everything_that_does_not_fit_is_named(tmp_path):
    """Fails if the first fault hides the others."""

    def change(tensors):
        del tensors["bert.encoder.layer.1.output.LayerNorm.bias"], tensors["cls.predictions.bias"]
        tensors["bert.encoder.layer.0.intermediate.dense.weight"] = torch.ones(19, 12)
        tensors["bert.encoder.layer.2.output.dense.weight"] = torch.ones(12, 20)

    with pytest.raises(ValueError, match="does not fit BERTForPreTraining") as caught:
        BERTForPreTraining.from_pretrained(damaged(tmp_path, change))
    assert set(str(caught.value).split("\n  ")[1:]) == {
        "missing: bias (37,)",
        "missing: bert.encoder.layers.1.norm2.bias (12,)",
        "unexpected: bert.encoder.layer.2.output.dense.weight (12, 20)",
        "misshapen: bert.encoder.layers.0.linear1.weight is (19, 12), wanted (20, 12)",
    }


def test_a_part_of_the_packed_projection_is_missing(tmp_path):
    """Fails if a missing key projection goes unnoticed because queries and values are there."""
    change = lambda tensors: tensors.pop("bert.encoder.layer.1.attention.self.key.weight")  # noqa: E731
    with pytest.raises(ValueError, match=r"missing: encoder.layers.1.self_attn.in_proj_weight \(36, 12\)"):
        BERT.from_pretrained(damaged(tmp_path, change))


@pytest.mark.parametrize("shape", [(11, 12), (12, 11)])
def test_a_part_of_the_packed_projection_is_misshapen(tmp_path, shape):
    """Fails if a projection of another height or width ends in an error about something else."""
    name = "bert.encoder.layer.1.attention.self.key.weight"
    with pytest.raises(ValueError, match="does not fit BERT") as caught:
        BERT.from_pretrained(damaged(tmp_path, lambda tensors: tensors.update({name: torch.ones(shape)})))
    assert "encoder.layers.1.self_attn.in_proj_weight" in str(caught.value)


def test_a_vocabulary_of_another_size(tmp_path):
    """Fails if a table with more rows than the sizes say is cut without a word."""
    with pytest.raises(ValueError, match=r"misshapen: embedding.token.weight is \(37, 12\), wanted \(36, 12\)"):
        BERT.from_pretrained(damaged(tmp_path, lambda tensors: None, vocab_size=36))


def test_an_output_layer_of_its_own(tmp_path):
    """Fails if an output layer that is not the table is dropped: the logits would be others."""
    change = lambda tensors: tensors.update({"cls.predictions.decoder.weight": torch.ones(37, 12)})  # noqa: E731
    with pytest.raises(ValueError, match=r"unexpected: cls.predictions.decoder.weight \(37, 12\)"):
        BERTForPreTraining.from_pretrained(damaged(tmp_path, change))


@pytest.mark.parametrize("head", [BERTForSequenceClassification, BERTForTokenClassification])
def test_a_checkpoint_without_a_classifier(tmp_path, head):
    """Fails if a classifier that nobody trained is made up."""
    with pytest.raises(ValueError, match=r"has no classifier.weight"):
        head.from_pretrained(damaged(tmp_path, lambda tensors: None))


@pytest.mark.parametrize("settings", [{}, {"pool": "cls"}])
def test_a_text_classifier_without_the_layer_for_cls(tmp_path, settings):
    """Fails if the message does not say what the checkpoint has and lacks: one of tokens has no pooler."""
    folder = damaged(tmp_path, lambda tensors: None, "BertForTokenClassification", **settings)
    with pytest.raises(ValueError, match=r"has pool 'cls' and no bert\.pooler\.dense\.weight; wanted"):
        BERTForSequenceClassification.from_pretrained(folder)


def test_a_pool_that_we_do_not_compute(tmp_path):
    """Fails if a pool that is not ours is read as another."""
    folder = damaged(tmp_path, lambda tensors: None, "BertForSequenceClassification", pool="max")
    with pytest.raises(ValueError, match=r"config\.json has pool 'max', wanted 'cls' or 'mean'"):
        BERTForSequenceClassification.from_pretrained(folder)


@pytest.mark.parametrize(
    "settings", [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}, {"is_decoder": True}]
)
def test_a_network_that_we_do_not_compute(tmp_path, settings):
    """Fails if a setting that changes the numbers is passed over."""
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"config.json has {name} {value!r}, wanted"):
        BERT.from_pretrained(damaged(tmp_path, lambda tensors: None, **settings))


def test_sizes_that_are_missing(tmp_path):
    """Fails if a config.json without sizes ends in a KeyError, or the first one that is missing hides the others."""
    build("BertModel", sizes()).save_pretrained(tmp_path)
    _, tensors = huggingface.read(tmp_path)
    huggingface.save(tmp_path, {"model_type": "bert", "vocab_size": 37, "hidden_size": 12}, tensors)
    wanted = ("max_position_embeddings", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    with pytest.raises(ValueError, match="^" + "; ".join(rf"config\.json has no {name}" for name in wanted) + "$"):
        BERT.from_pretrained(tmp_path)


def test_the_wrong_kind_of_model(tmp_path):
    """Fails if a BERT is loaded into a GPT, or a traceback about its tensors hides why not."""
    with pytest.raises(ValueError, match=r"config\.json has model_type 'bert', wanted 'gpt2'"):
        GPT.from_pretrained(damaged(tmp_path, lambda tensors: None))
