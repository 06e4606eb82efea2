"""The attention explorer as data: what it stores, what it refuses, what comparisons see of it.

How it behaves in a real browser is looked at in test_clients.py.
"""

import base64
import io
import json
import re
from html.parser import HTMLParser

import matplotlib.colors
import numpy as np
import pytest
import torch
from IPython.core.formatters import DisplayFormatter
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

from course_lib.attention import MultiHeadAttention
from course_lib.notebook import explorer_still, plots, recorder
from course_lib.notebook.explorer import Looks, Sentence, explore
from course_lib.notebook.recorder import explore_sentence, record
from tools.notebooks import guards

TOKENS = ["the", "cat", "sat", "<pad>"]


def causal_maps(layers=2, heads=3, seed=0):
    """Causal maps of four tokens, of which the last is padding: nobody looks at it, and it looks nowhere."""
    scores = torch.randn(layers, heads, 4, 4, generator=torch.Generator().manual_seed(seed))
    maps = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf).softmax(-1)
    maps[:, :, 3] = 0
    return list(maps)


def shown(tokens=TOKENS, maps=None, alt="Who looks at whom.", caption="The cat looks back.", **more):
    return explore(tokens, causal_maps() if maps is None else maps, alt=alt, caption=caption, **more)


def picture_of(it):
    """The still picture, in base64."""
    return explorer_still.still(it.sentences, it.view)


class Attributes(HTMLParser):
    """Collect every attribute of every element."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def __getitem__(self, name):
        (value,) = [attributes[name] for _, attributes in self.elements if name in attributes]
        return value


def test_weights_are_stored_as_thousandths():
    """Fails if layers, heads or axes are mixed up, or if 0 and nearly 0 look alike."""
    maps = [
        torch.tensor([[[0.25, 0.75, 0.0], [0.0004, 0.0, 0.9996]]]),
        torch.tensor([[[0.0, 0.0, 0.0], [0.1, 0.2, 0.7]]]),
    ]
    stored = Attributes(shown(["a", "b"], maps, keys=["x", "y", "z"]).html())
    assert json.loads(stored["data-weights"]) == [
        [[[[[250, 750, -1], [0, -1, 1000]]], [[[-1, -1, -1], [100, 200, 700]]]]],
    ]
    assert json.loads(stored["data-scores"]) == [[[None, None]]]
    (sentence,) = json.loads(stored["data-view"])["sentences"]
    part = {"name": "", "queries": ["a", "b"], "keys": ["x", "y", "z"], "own": False, "head_dims": [None, None]}
    assert sentence == {"name": "", "parts": [part]}


def test_scores_are_stored_beside_the_weights():
    """Fails if they are mixed up, if K is lost, or if the scores' layer is not the weights' layer."""
    scores = torch.tensor([[[1.0, -2.5], [0.25, 7.0]]])
    visible = torch.ones(2, 2).tril().bool()
    looks = Looks(scores.masked_fill(~visible, -torch.inf).softmax(-1), scores, head_dim=9)
    stored = Attributes(shown(["a", "b"], [torch.eye(2)[None], looks]).html())
    assert json.loads(stored["data-scores"]) == [[[None, [[[1000, -2500], [250, 7000]]]]]]
    ((part,),) = [s["parts"] for s in json.loads(stored["data-view"])["sentences"]]
    assert (part["head_dims"], part["own"]) == ([None, 9], True)


def test_several_sentences_stand_beside_each_other():
    """Fails if a sentence gets its neighbour's tokens or maps, or the start is not looked up in the first."""
    it = explore(
        {"one": Sentence(["a", "b"], [torch.eye(2)[None]]), "two": Sentence("xyz", [torch.eye(3)[None]])},
        alt="Two.", caption="Alone.", query="b", key="a",
    )  # fmt: skip
    stored = Attributes(it.html())
    view = json.loads(stored["data-view"])
    assert [(s["name"], s["parts"][0]["queries"]) for s in view["sentences"]] == [
        ("one", ["a", "b"]),
        ("two", [*"xyz"]),
    ]
    assert [np.shape(s) for s in json.loads(stored["data-weights"])] == [(1, 1, 1, 2, 2), (1, 1, 1, 3, 3)]
    assert (view["query"], view["key"]) == (1, 0)


class Reader(torch.nn.Module):
    """Two layers of attention, of two heads and of one, the second one causal."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(256, 6)
        self.gather, self.read = MultiHeadAttention(6, 2), MultiHeadAttention(6, 1)

    def forward(self, ids):
        x = self.words(ids)
        return self.read(x + self.gather(x), causal=True)


def test_a_recording_is_what_the_layers_compute():
    """Fails if scores are masked, not scaled or of another layer, if K is wrong, or if the mode is changed."""
    torch.manual_seed(0)
    model, ids = Reader().train(), torch.tensor([[1, 2, 3]])
    found = record(model, ids)
    assert model.training
    assert list(found) == ["gather", "read"]
    x = model.words(ids)
    q, k, _ = model.gather.project(x)
    torch.testing.assert_close(found["gather"].scores, (q @ k.mT / 3**0.5)[0])
    torch.testing.assert_close(found["gather"].weights, found["gather"].scores.softmax(-1))
    assert (found["gather"].head_dim, found["read"].head_dim) == (3, 6)
    later = found["read"].scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(found["read"].weights, later.softmax(-1))
    with pytest.raises(ValueError, match="wanted one sentence, a batch of 1; layer 'gather' got 2"):
        record(model, ids.expand(2, 3))


def tokenize(text):
    """Letters as tokens."""
    return list(text), torch.tensor([list(text.encode())])


def test_the_readers_own_sentences():
    """Fails if a sentence is run with another's ids, if the switch's names or the start are wrong."""
    torch.manual_seed(0)
    model = Reader()
    it = explore_sentence(model, tokenize, "abca", "abda", part="read", query="c", key="z")
    assert list(it.sentences) == ["c", "d"]
    assert [p.name for p in it.sentences["d"]] == ["gather", "read"]
    wanted = record(model, tokenize("abda")[1])
    torch.testing.assert_close(it.sentences["d"][0].layers[0].weights, wanted["gather"].weights.double())
    assert it.sentences["d"][1].queries == list("abda")
    assert (it.view["part"], it.view["query"], it.view["key"]) == (1, 2, None)
    assert explore_sentence(model.gather, lambda text: ([*text], torch.rand(1, 2, 6)), "ab").view["query"] == 0
    with pytest.raises(ValueError, match="at least one sentence"):
        explore_sentence(model, tokenize)


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["too tired", "too wide"], ["tired", "wide"]),
        (["a b c", "a x y c"], ["b", "x y"]),
        (["a b", "a b"], ["sentence 1", "sentence 2"]),
        (["a", "a b"], ["sentence 1", "sentence 2"]),
        (["one long sentence of many words", "and another one of no words in common"], ["sentence 1", "sentence 2"]),
    ],
)
def test_a_switch_names_the_words_in_which_sentences_differ(texts, names):
    assert recorder.short_names([text.split() for text in texts]) == names


def test_several_parts_keep_their_own_tokens():
    """Fails if cross-attention gets the decoder's tokens as keys, or a part its neighbour's maps."""
    maps = {"encoder": torch.eye(3).expand(2, 5, 3, 3), "cross": torch.full((1, 4, 2, 3), 1 / 3)}
    tokens = {"cross": ["a", "b"], "encoder": ["x", "y", "z"]}
    it = shown(tokens, maps, keys={"cross": tokens["encoder"]}, part="cross", head=3, query=1)
    stored = Attributes(it.html())
    view = json.loads(stored["data-view"])
    assert [(p["name"], p["queries"], p["keys"], p["own"]) for p in view["sentences"][0]["parts"]] == [
        ("encoder", ["x", "y", "z"], ["x", "y", "z"], True),
        ("cross", ["a", "b"], ["x", "y", "z"], False),
    ]
    assert (view["part"], view["layer"], view["heads"], view["query"], view["key"]) == (1, 0, [3], 1, None)
    (weights,) = json.loads(stored["data-weights"])
    assert [np.shape(part) for part in weights] == [(2, 5, 3, 3), (1, 4, 2, 3)]


def test_words_cannot_become_markup():
    """A token of a real text may look like HTML; fails if it opens an element or an attribute."""
    wild = ["</script><b>", "\"'>", "&amp;", "$x$"]
    it = shown(wild, alt='Tokens "wild".', caption="<i>1 < 2</i>", title="<u>")
    found = Attributes(it.page())
    assert json.loads(found["data-view"])["sentences"][0]["parts"][0]["queries"] == wild
    assert {tag for tag, _ in found.elements}.isdisjoint({"b", "i", "u"})
    assert [a["alt"] for tag, a in found.elements if tag == "img"] == ['Tokens "wild".']


def test_a_word_of_the_caption_can_be_stressed():
    """As in the captions of figures; fails if the reader sees asterisks, or if stress lets markup through."""
    assert "<em>Point at <b>it</b>: 1 &lt; 2.</em>" in shown(caption="Point at *it*: 1 < 2.").html()
    assert "<em><b>&lt;i&gt;</b></em>" in shown(caption="*<i>*").html()


def test_it_asks_for_nothing_and_names_nothing():
    """Fails on an address of any kind (a network would be asked) or an id (two on one page would clash)."""
    it = shown()
    text = it.html()
    words = re.sub('base64,[^"]*', "", text)  # the picture may hold any letters
    assert re.findall(r"https?:|=[\"']//|@import|url\(|fetch|XMLHttp|WebSocket|\bimport\b|require", words) == []
    for _, attributes in Attributes(text).elements:
        assert "id" not in attributes
        assert "href" not in attributes
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
    assert it.html() == text == shown().html()


def test_the_stored_output_is_small_and_has_alt_text():
    """Two layers, four heads, twenty tokens: what a notebook stores stays below 150 kB."""
    maps = torch.rand(2, 4, 20, 20, generator=torch.Generator().manual_seed(1)).softmax(-1)
    data, metadata = DisplayFormatter().format(shown([f"token{i}" for i in range(20)], maps))
    assert set(data) == {"text/html", "image/png", "text/plain"}
    assert sum(map(len, data.values())) < 150_000
    assert data["text/plain"] == "[attention explorer] Who looks at whom."
    assert metadata["image/png"] == {"alt": "Who looks at whom.", "width": 700}


def notebook_with(it):
    data, metadata = it._repr_mimebundle_()
    output = new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    prose = new_markdown_cell("Where does each head look, and which words does the padding see, if it looks anywhere?")
    return new_notebook(cells=[prose, new_code_cell("explore()", execution_count=1, outputs=[output])])


def compared(it):
    """What nbval compares of the HTML, by the project's own rules."""
    text = it.html()
    for pattern, replacement in get_sanitize_patterns(guards.SANITIZE.read_text(encoding="utf8")):
        text = re.sub(pattern, replacement, text)
    return text


def test_comparisons_see_words_and_not_weights():
    """Trained weights vary between machines in the third digit: fails if they or pixels are compared, or nothing is."""
    assert compared(shown()) == compared(shown(maps=causal_maps(seed=1)))
    assert len(compared(shown())) < len(shown().html()) - 10_000  # the picture is gone
    assert compared(shown()) != compared(shown(tokens=["the", "dog", "sat", "<pad>"]))
    assert compared(shown()) != compared(shown(caption="The cat looks on."))


def test_a_notebook_with_it_passes_the_guards():
    notebook = notebook_with(shown())
    assert [problem for guard in guards.GUARDS for problem in guard(notebook)] == []


def test_the_still_picture_shows_the_map_that_is_shown_first(monkeypatch):
    """Fails if another head is drawn, if the axes are swapped, or if masked weights look like small ones."""
    calls = []
    draw = plots.heatmap
    monkeypatch.setattr(plots, "heatmap", lambda ax, *given, **more: calls.append(given) or draw(ax, *given, **more))
    maps = [torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(n)).softmax(-1) for n in range(2)]
    maps[1][2, 0] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    png = picture_of(shown(["a", "b"], maps, keys=["w", "x", "y", "z"], layer=1, head=2))
    assert base64.b64decode(png).startswith(b"\x89PNG")
    picture_of(shown(["a", "b"], maps, keys=["w", "x", "y", "z"], layer=1, head="mean"))
    (one, keys, queries, _), (mean, *_) = calls
    wanted = maps[1][2].double().numpy()
    wanted[0, 2:] = np.nan
    np.testing.assert_array_equal(one, wanted)
    np.testing.assert_allclose(mean, maps[1].double().mean(0))
    assert (keys, queries) == (["w", "x", "y", "z"], ["a", "b"])


def test_the_small_maps_stand_by_layer_and_head():
    """One weight of 1 in each map, everything else masked; fails if a map stands in another's place."""
    maps = torch.zeros(2, 2, 3, 3)
    for n, h, i, j in [(0, 0, 0, 0), (0, 1, 1, 2), (1, 0, 2, 1), (1, 1, 0, 2)]:
        maps[n, h, i, j] = 1
    ax = plots.axes()
    explorer_still._mosaic(ax, shown("abc", maps).sentences[""])
    picture = ax.images[0].get_array()
    blue = np.isclose(picture, matplotlib.colors.to_rgb(plots.COLORS["attention"])).all(-1)
    assert picture.shape == (2 * 4 - 1, 3 * 4 - 1, 3)
    assert np.argwhere(blue).tolist() == [[0, 0], [1, 6], [4, 6], [6, 1]]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["layer 0", "layer 1"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "1", "mean"]


def test_a_part_with_fewer_heads_leaves_its_columns_empty():
    """Fails if its mean stands under the label of a head that it does not have, or one head has a mean of its own."""
    maps = {
        "wide": torch.eye(2).expand(1, 3, 2, 2),
        "two": torch.eye(2).expand(1, 2, 2, 2),
        "one": torch.eye(2)[None, None],
    }
    ax = plots.axes()
    explorer_still._mosaic(ax, shown(dict.fromkeys(maps, "ab"), maps).sentences[""])
    picture = np.asarray(ax.images[0].get_array())
    drawn = [[(picture[3 * r, 3 * c] < 0.5).any() for c in range(4)] for r in range(3)]  # the first entry of each map
    assert drawn == [[True] * 4, [True, True, False, True], [True, False, False, False]]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "1", "2", "mean"]


def test_one_head_alone_has_no_mean():
    """As in the lists of the living one; fails if its map is drawn a second time as a mean."""
    ax = plots.axes()
    explorer_still._mosaic(ax, shown("ab", torch.eye(2)[None, None]).sentences[""])
    assert ax.images[0].get_array().shape == (2, 2, 3)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0"]


def test_a_map_that_is_masked_throughout_can_be_drawn():
    """Fails if the colour scale of an empty map, or a single token, stops the picture."""
    from PIL import Image

    png = picture_of(shown(["a"], torch.zeros(1, 1, 1, 1)))
    assert Image.open(io.BytesIO(base64.b64decode(png))).width == 980


def test_the_page_is_a_whole_document(tmp_path):
    path = tmp_path / "attention.html"
    it = shown(title="Cats & dogs")
    it.write_page(path)
    text = path.read_text(encoding="utf8")
    assert text == it.page()
    assert it.html() in text
    assert "<title>Cats &amp; dogs</title>" in text
    assert text.rstrip().endswith("</html>")


def spoiled(value, *place):
    maps = causal_maps()
    maps[place[0]][place[1:]] = value
    return maps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alt": " "}, "needs alt text and a caption; got alt=' '"),
        ({"caption": ""}, "needs alt text and a caption; .* caption=''"),
        ({"maps": []}, "maps has 0 layers, 4 query tokens and 4 key tokens; there must be at least one of each"),
        ({"tokens": []}, "2 layers, 0 query tokens and 0 key tokens"),
        ({"tokens": ["a", "b", "c"]}, r"maps\[0\] has shape \(3, 4, 4\); wanted \(H, T, S\) .* T = 3 .* S = 3"),
        ({"keys": ["a"]}, r"maps\[0\] has shape \(3, 4, 4\); .* T = 4 query tokens and S = 1 key tokens\.$"),
        ({"maps": causal_maps()[0]}, r"maps\[0\] has shape \(4, 4\); wanted \(H, T, S\)"),
        ({"maps": [torch.tensor(1.0)]}, r"maps\[0\] has shape \(\); wanted \(H, T, S\)"),
        ({"maps": [torch.zeros(0, 4, 4)]}, r"maps\[0\] has shape \(0, 4, 4\)"),
        ({"maps": [causal_maps()[0][None]]}, r"shape \(1, 3, 4, 4\).* take one sentence: \[w\[0\] for w in maps\]"),
        ({"maps": [causal_maps()[0], causal_maps()[1][:2]]}, r"maps\[1\] has shape \(2, 4, 4\).* same H in each layer"),
        ({"maps": spoiled(-0.5, 1, 0, 2, 1)}, r"maps\[1\] holds -0.5; weights must be numbers from 0 to 1"),
        ({"maps": spoiled(torch.nan, 0, 0, 2, 1)}, r"maps\[0\] holds nan"),
        ({"maps": spoiled(9.0, 1, 2, 0, 0)}, r"maps\[1\]\[2\]\[0\] sums to 9; each row must sum to 1"),
        ({"maps": spoiled(torch.inf, 1, 2, 0, 0)}, r"maps\[1\]\[2\]\[0\] sums to inf"),
        ({"part": "cross"}, "part is 'cross', but maps is a list; only the maps of a dict have names"),
        (
            {"maps": {"cross": causal_maps()}, "tokens": {"cross": TOKENS}, "part": "self"},
            r"part is 'self'; wanted one of \['cross'\]",
        ),
        ({"layer": 2}, "layer is 2; wanted an index from 0 to 1"),
        ({"head": -1}, "head is -1; wanted an index from 0 to 2"),
        ({"head": "max"}, "head is 'max'; wanted an index from 0 to 2"),
        ({"query": 4}, "query is 4; wanted an index from 0 to 3"),
        ({"maps": {}, "tokens": {}}, "maps is an empty dict"),
        ({"head": [0, 3]}, "head is 3; wanted an index from 0 to 2"),
        ({"query": "dog"}, r"query is 'dog'; wanted an index or one of \['the', 'cat', 'sat', '<pad>'\]"),
        ({"query": 0, "key": "dog"}, "key is 'dog'; wanted an index or one of"),
        ({"key": 1}, "key is 1, but query is None"),
        ({"maps": [Looks(torch.eye(4)[None], torch.zeros(1, 4, 3))]}, r"scores of shape \(1, 4, 3\), weights of"),
        ({"maps": [Looks(torch.eye(4)[None], torch.full((1, 4, 4), -torch.inf))]}, "not finite; .* before the mask"),
        (
            {"maps": [Looks(torch.full((1, 4, 4), 0.25), torch.eye(4)[None])]},
            r"maps\[0\]: the softmax of the scores gives 0.475 at \[0\]\[0\]\[0\], the weight is 0.25",
        ),
        ({"maps": {"cross": causal_maps()}}, r"maps is a dict of \['cross'\], so tokens must .*; got a list"),
        ({"maps": {"cross": causal_maps()}, "tokens": {"encoder": TOKENS}}, r"of the same names; got \['encoder'\]"),
        (
            {"maps": {"cross": causal_maps()}, "tokens": {"cross": TOKENS}, "keys": TOKENS},
            r"dict of \['cross'\], so keys must be a dict of some of these names; got a list",
        ),
        (
            {"maps": {"cross": causal_maps()}, "tokens": {"cross": TOKENS}, "keys": {"self": TOKENS}},
            r"some of these names; got \['self'\]",
        ),
        (
            {"maps": {"cross": causal_maps()}, "tokens": {"cross": TOKENS}, "keys": {"cross": ["a"]}},
            r'maps\["cross"\]\[0\] has shape \(3, 4, 4\); .* S = 1',
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, message):
    """Fails if the wrong thing passes, or if the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        shown(**change)


def test_rows_in_half_precision_pass():
    """A row of bfloat16 numbers does not sum to exactly 1; fails if the tolerance forgets that."""
    maps = torch.rand(1, 2, 7, 7, generator=torch.Generator().manual_seed(0)).softmax(-1).bfloat16()
    assert len(shown("abcdefg", maps).sentences[""][0].layers) == 1


def test_sentences_must_have_the_same_parts():
    """Fails if a switch could lead to a part, a layer or a head that is not there."""
    eye = torch.eye(2)
    with pytest.raises(ValueError, match=r"sentence 'two' has the parts, layers and heads \[\('', 2, 1\)\]"):
        explore(
            {"one": Sentence("ab", [eye[None]]), "two": Sentence("ab", [eye[None]] * 2)}, alt="Two.", caption="Alone."
        )
    with pytest.raises(ValueError, match="tokens is an empty dict"):
        explore({}, alt="Two.", caption="Alone.")
