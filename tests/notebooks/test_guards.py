"""Each guard is shown a notebook that breaks it, and one that does not.

A guard that found nothing would pass all notebooks; these tests fail then.
"""

from itertools import pairwise

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.notebooks import editions, guards

PNG = {"image/png": "aGVsbG8=", "text/plain": "[figure] A line."}


NO_WORDS = new_output("display_data", data=PNG, metadata={"image/png": {"alt": " "}})
ERROR = new_output("error", ename="KeyError", evalue="x", traceback=[])


def printed(text):
    return new_output("stream", name="stdout", text=text)


def said(text):
    return new_output("display_data", data={"text/markdown": text, "text/plain": text})


def sound(**changes):
    """Return a notebook of four cells with output that no guard objects to."""
    cells = [new_code_cell(f"print({i})", execution_count=i, outputs=[printed(f"{i}\n")]) for i in (1, 2, 3)]
    figure = new_output("display_data", data=PNG, metadata={"image/png": {"alt": "A line."}})
    cells.append(new_code_cell("show()", execution_count=4, outputs=[figure]))
    for name, value in changes.items():
        setattr(cells[0], name, value)
    return new_notebook(cells=[new_markdown_cell("# Title\n\n![A picture.](a.svg)\n\n" + 500 * "word "), *cells])


def all_guards(notebook):
    return [problem for guard in guards.GUARDS for problem in guard(notebook)]


def test_a_sound_notebook_passes_every_guard():
    assert all_guards(sound()) == []


@pytest.mark.parametrize(
    ("guard", "changes", "words"),
    [
        (guards.not_executed, {"execution_count": None}, "executed as [None, 2, 3, 4]"),
        (guards.not_executed, {"execution_count": 7}, "executed as [7, 2, 3, 4]"),
        (guards.unmarked_errors, {"outputs": [ERROR]}, "KeyError"),
        (guards.failed_claims, {"outputs": [said("✗ Not with these settings: It falls.")]}, "settings: It falls."),
        (guards.long_cells, {"source": "x = 1\n" * 21}, "21 visible lines, more than 20"),
        (guards.long_cells, {"source": f"x = '{90 * 'a'}'"}, "a line of 96 characters"),
        (guards.marks_for_tools, {"source": "x = 1  # noqa: E1"}, "a mark for tools: x = 1  # noqa: E1"),
        (guards.marks_for_tools, {"outputs": [said("```python\n)  # fmt: skip\n```")]}, "a mark for tools: )  # fmt"),
        (guards.many_claims, {"outputs": [said(f"✓ It is {i}.") for i in range(3)]}, "3 claims at a figure, more than"),
        (guards.answers_given_away, {"source": "claim('It falls.', True)"}, "a claim in visible code"),
        (guards.machine_traces, {"outputs": [printed("saved to /home/ann/model.pt")]}, "a path: '/home/'"),
        (guards.machine_traces, {"outputs": [printed("saved to C:\\Users\\ann")]}, "a path"),
        (guards.machine_traces, {"outputs": [printed("in lib/site-packages/torch")]}, "a path"),
        (guards.machine_traces, {"outputs": [printed("run on 2026-11-20")]}, "a date or time: '2026-11-20'"),
        (guards.machine_traces, {"outputs": [printed("torch 2.13.0+cpu")]}, "a version: '2.13.0+cpu'"),
        (guards.missing_alt, {"outputs": [new_output("display_data", data=PNG)]}, "without alt text"),
        (guards.missing_alt, {"outputs": [NO_WORDS]}, "without alt text"),
        (guards.semicolons, {"source": "plot(x);\n"}, "ends in ';'"),
        (guards.moving_outputs, {"source": "clear_output(wait=True)"}, "clears its output"),
        (
            guards.moving_outputs,
            {"outputs": [new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {}})]},
            "a widget",
        ),
    ],
)  # fmt: skip
def test_a_guard_finds_what_it_guards_against(guard, changes, words):
    """Fails if the guard stays silent, or if another guard than the named one speaks."""
    notebook = sound(**changes)
    (problem,) = all_guards(notebook)
    assert guard(notebook) == [problem]
    assert words in problem


def test_an_error_marked_as_meant_passes():
    assert guards.unmarked_errors(sound(outputs=[ERROR], metadata={"tags": ["raises-exception"]})) == []


def test_images_in_text_need_alt_text():
    notebook = sound()
    notebook.cells[0].source = "![](https://example.org/a.png)"
    assert guards.missing_alt(notebook) == [f"{notebook.cells[0].id}: an image in the text without alt text"]
    notebook.cells[0].source = "![A cell.](https://example.org/a.png)"
    assert guards.missing_alt(notebook) == []


def test_a_quarter_may_be_exempt_and_no_more():
    notebook = sound(metadata={"tags": ["nbval-ignore-output"]})
    assert guards.too_many_exempt(notebook) == []  # one of four
    notebook.cells[2].source = "# NBVAL_IGNORE_OUTPUT\nprint(2)"
    assert guards.too_many_exempt(notebook) == [
        "2 of 4 cells with output are not compared; at most a quarter may be exempt"
    ]


def test_a_cell_of_which_sanitising_leaves_nothing_counts_as_exempt():
    """Otherwise everything could be printed on lines that are not compared."""
    notebook = sound(metadata={"tags": ["nbval-ignore-output"]})
    notebook.cells[2].outputs = [said("<small>loss 1.23</small>")]
    assert len(guards.too_many_exempt(notebook)) == 1
    notebook.cells[2].outputs = [said("✓ It falls. <small>loss 1.23</small>")]
    assert guards.too_many_exempt(notebook) == []


FOLDED = {"tags": ["fold"], "jupyter": {"source_hidden": True}}


def test_the_budgets_are_those_of_visible_code_alone():
    """Fails if apparatus or an exercise counts as code that a reader reads."""
    exercise = {"nbgrader": {"grade_id": "ex01-1-a", "solution": True, "grade": False}}
    for metadata in (FOLDED, exercise):
        notebook = sound(source="x = 1\n" * 30, metadata=metadata)
        assert all_guards(notebook) == []
    notebook = sound()
    notebook.cells[0].source = "# Title\n\n![A picture.](a.svg)"
    assert guards.more_code_than_words(notebook) == ["4 words and 4 visible lines of code, 1.0 to a line; wanted 10"]


def test_the_first_picture_comes_before_visible_code():
    notebook = sound()
    notebook.cells[0].source = "# Title\n\n" + 500 * "word "
    assert guards.code_before_a_picture(notebook) == [f"{notebook.cells[1].id}: visible code before the first picture"]
    notebook.cells[1].metadata = FOLDED
    notebook.cells[1].outputs = notebook.cells[4].outputs
    assert guards.code_before_a_picture(notebook) == []


def test_marks_for_tools_are_found_in_folded_cells_too():
    """Fails if a reader who opens apparatus may find one there, or an exercise may hold one."""
    for metadata in (FOLDED, {"nbgrader": {"grade_id": "ex01-1-a", "solution": True, "grade": False}}):
        assert len(guards.marks_for_tools(sound(source="f = lambda x: x  # noqa: E731", metadata=metadata))) == 1


def test_a_cell_that_was_slow_and_silent_is_found():
    notebook = sound()
    notebook.metadata.course = {"silent": {"abc": 5}}
    assert all_guards(notebook) == ["abc: takes 5 s and shows no progress; use tqdm"]


def test_claims_are_counted_at_a_figure():
    """Fails if a third claim passes in the next cell, or one after another figure or text does not."""
    two, one = [said(f"✓ It is {i}.") for i in range(2)], [said("✓ It is so.")]
    notebook = sound(outputs=two)
    notebook.cells[2].outputs = one
    assert guards.many_claims(notebook) == [
        f"{notebook.cells[2].id}: 3 claims at a figure, more than 2; say the rest in the text"
    ]
    for another in (notebook.cells[4].outputs[0], printed("a table"), said("| a |\n|---|\n| 1 |")):
        notebook.cells[2].outputs = [another, *one]
        assert guards.many_claims(notebook) == []
    notebook.cells[2].outputs = one
    notebook.cells.insert(2, new_markdown_cell("Now the other one."))
    assert guards.many_claims(notebook) == []
    notebook = sound(outputs=[*two, *one])
    notebook.cells.insert(1, new_markdown_cell("## 8 · Errors you will meet"))
    assert guards.many_claims(notebook) == []


def test_the_main_path_has_its_budget():
    """Fails if a word too much passes, or if what not everybody reads is counted."""
    notebook = sound()
    notebook.cells.append(new_markdown_cell("word " * 3497))
    assert guards.words_of_the_main_path(notebook) == 3998  # with "Title", and 500
    link = new_markdown_cell("[two words](https://example.org/a b c)")
    notebook.cells.append(link)
    for text in (
        "### Exercise 1.1 · A task\n\nmany words\n\n*End of exercise 1.1.*\n\n---",
        "## References\n\n- A. Author, *A title*",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "```python\na = b + c\n```",
        "$$ a = b + c $$",
        "<details><summary>More</summary>much more</details>",
        "## Going deeper\n\n" + "word " * 500,
    ):
        notebook.cells.append(new_markdown_cell(text))
    assert guards.words_of_the_main_path(notebook) == 4000  # and "two words"
    assert guards.long_main_path(notebook) == []
    link.source += " and $a = b + c$"
    assert guards.long_main_path(notebook) == ["4002 words before Going deeper, more than 4000"]


ASK = "guess = predict('the loss', ...)"


def asked(
    result="✓ The loss falls by a half. <small>loss 0.5</small>", between="", tags=("reveal",), closed=True, folded=True
):
    """A notebook that asks in its first cell and shows the result in its third."""
    notebook = sound(source=ASK)
    notebook.cells[2].outputs = []
    notebook.cells[2].source = between or "x = 1"
    metadata = {"tags": list(tags), "jupyter": {"outputs_hidden": closed, "source_hidden": folded}}
    notebook.cells[3].metadata, notebook.cells[3].outputs = metadata, [said(result)]
    return notebook


def test_a_question_may_not_be_answered_before_its_result():
    """Fails if an answer in a text, in a claim's source or in an open output passes, or a safe question does not."""
    assert guards.answers_given_away(asked()) == []
    (problem,) = guards.answers_given_away(asked(between="# The loss falls by a half."))
    assert "'The loss falls by a half.' stands in visible text" in problem
    (problem,) = guards.answers_given_away(asked("You made no guess; measured: <b>0.512</b>.", between="x = 0.512"))
    assert "'0.512' stands in visible text" in problem
    assert len(guards.answers_given_away(asked(closed=False))) == 1
    twice = asked()
    twice.cells.extend(asked().cells[1:])
    assert guards.answers_given_away(twice) == ["two questions keep their guess as guess"]
    (problem,) = guards.answers_given_away(asked(folded=False))
    assert "shows the first line of a closed output" in problem
    assert guards.answers_given_away(asked("*The loss:*\nyou made no guess", folded=False)) == []
    found = guards.answers_given_away(asked(tags=(), closed=False))
    assert "an open output between a question and its result" in found[0]
    assert "no cell tagged reveal follows" in found[-1]


def measured(question, result, above="", between=""):
    """A notebook with a section that says one thing above its question, one between question and result."""
    asks = f"No guess yet of {question}: put one in place of the three dots, run this cell, and go on."
    cells = [
        new_markdown_cell("# Title\n\n![A picture.](a.svg)\n\n" + 500 * "word "),
        new_markdown_cell(f"## 4 · A section\n\n{above}"),
        new_code_cell(f'guess = predict("{question}", ...)', execution_count=1, outputs=[said(asks)]),
        new_markdown_cell(between),
        new_code_cell(
            "# @title The result\nshow()",
            execution_count=2,
            metadata={"tags": ["reveal", "fold"], "jupyter": {"outputs_hidden": True, "source_hidden": True}},
            outputs=[said(f"*{question}:*\nyou made no guess; measured: <b>{result}</b>.")],
        ),
    ]  # fmt: skip
    return new_notebook(cells=cells)


LSTM = ("this LSTM's accuracy at a lag of 32, from 0 to 1", "0.2")
GRU = ("the accuracy of a GRU, as torch initialises it, at lag 32", "1")
PADDED = ("its accuracy, read after the padding, from 0 to 1", "about 0.5")
FLOPS = ("the layer with the fewest FLOPs for 20 words", "RNN")
PERFECT = ("every step: perfect sentences of 500", "363")
EPOCHS = ("how many of 100 new sentences the look-ahead one gets right", "0")


@pytest.mark.parametrize(
    ("question", "above", "between"),
    [
        (LSTM, "At lag 32 this LSTM only guesses: 0.2.", ""),
        (LSTM, "With a lag of 32 the LSTM is right in 20 % of the cases.", ""),
        (LSTM, "", "It comes to 0.2 in every seed."),
        (PADDED, "Read after the padding, its accuracy is 0.5.", ""),
        (("its accuracy on the reviews, in per cent", "94 %"), "- accuracy on IMDB's reviews: 94", ""),
        (("the plain RNN's accuracy, from 0 to 1", "0.184"), "An accuracy of 0.18 is all that a plain RNN has.", ""),
        (PERFECT, "Attention writes 363 perfect sentences.", ""),
        (GRU, "", "The GRU has an accuracy of 1 there."),
        (EPOCHS, "", "Of these new sentences it gets none right."),
        (FLOPS, "The RNN has the fewest FLOPs of the three.", ""),
        (FLOPS, "", "A layer, the RNN, wins."),
    ],
)  # fmt: skip
def test_a_measured_number_or_word_may_not_be_told_before(question, above, between):
    """Fails if a short answer passes above its question, in the same section, or between question and result."""
    (problem,) = guards.answers_given_away(measured(*question, above, between))
    assert f"the answer {question[1]!r} is given away above it: " in problem
    assert (above or between).lstrip("- ") in problem


@pytest.mark.parametrize(
    ("question", "above", "between"),
    [
        (LSTM, "A forget gate of 0.2 halves a cell every half step.", ""),  # another quantity
        (LSTM, "Put in your guess of this LSTM's accuracy at lag 32, from 0 to 1.", ""),
        (GRU, "The rest, 1 - z, comes from the candidate of the GRU.", "It trains as before, at lag 32."),
        (FLOPS, "Three layers read the text: a recurrent layer (RNN), a convolution, and attention.", ""),
        (EPOCHS, "Both are trained on 4,000 pairs, seed 0.", "The look-ahead one was trained for 3 epochs."),
        (("the factor of growth at radius 1.1", "13,781, and at radius 0.9 there are 3e-05 left"),
         "What do powers come to, with a radius of 0.9 and of 1.1? Do they show growth?", ""),
    ],
)  # fmt: skip
def test_a_number_that_answers_nothing_may_be_told(question, above, between):
    """Fails if a question's neighbourhood may not contain digits at all."""
    assert guards.answers_given_away(measured(*question, above, between)) == []


def test_captions_and_code_before_a_result_are_read_too():
    """Fails if only Markdown cells are looked at: a caption of an open figure, a comment in a visible cell."""
    caption = "*At lag 32 the LSTM guesses: 0.2.*"
    notebook = measured(*LSTM)
    notebook.cells.insert(2, new_code_cell("figures.lags()", outputs=[said("[figure]"), said(caption)]))
    (problem,) = guards.answers_given_away(notebook)
    assert caption in problem
    notebook.cells[2].metadata = {"jupyter": {"outputs_hidden": True}}
    assert guards.answers_given_away(notebook) == []
    notebook = measured(*LSTM)
    notebook.cells[2].outputs.append(said(caption))  # by the cell that asks
    (problem,) = guards.answers_given_away(notebook)
    assert caption in problem
    notebook = measured(*LSTM)
    notebook.cells[2].source += "\nlstm = train(lag=32)  # only 0.2"
    (problem,) = guards.answers_given_away(notebook)
    assert "only 0.2" in problem
    notebook = measured(*LSTM, above="At lag 32 this LSTM only guesses: 0.2.")
    notebook.cells.insert(2, new_markdown_cell("## 5 · The next section"))
    assert guards.answers_given_away(notebook) == []  # another section


SOURCE = """\
# ---
# jupyter:
#   course:
#     minutes: 10
#     needs: nothing
# ---

# %% [markdown]
# # 98 · A chapter

# %%
print(1)
"""


@pytest.fixture
def a_source(tmp_path, monkeypatch):
    monkeypatch.setattr(editions, "SOURCES", tmp_path)
    path = tmp_path / "98_chapter.py"
    path.write_text(SOURCE, encoding="utf8")
    return path


def test_a_notebook_older_than_its_source_is_stale(a_source):
    notebook = editions.student(editions.chapter(a_source))
    assert guards.stale("98_chapter.ipynb", notebook) == []
    a_source.write_text(SOURCE.replace("print(1)", "print(2)"), encoding="utf8")
    assert guards.stale("98_chapter.ipynb", notebook) == ["cell 2 is not what 98_chapter.py says; run make notebooks"]


def test_a_cell_added_by_hand_is_stale(a_source):
    notebook = editions.student(editions.chapter(a_source))
    notebook.cells.append(new_code_cell("print(3)"))
    assert guards.stale("98_chapter.ipynb", notebook) == ["cell 3 is not what 98_chapter.py says; run make notebooks"]


def test_a_notebook_without_source_is_found(a_source):
    assert guards.stale("97_other.ipynb", new_notebook()) == ["there is no source 97_other.py"]


NOTEBOOKS = sorted(editions.NOTEBOOKS.glob("*.ipynb"))


def test_every_source_has_its_notebook():
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in editions.sources()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_notebooks_pass_every_guard(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert guards.problems(path, notebook) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_cell_prints_is_stored_in_one_piece(path):
    """Fails if a print that arrived in two messages is stored as two outputs: a page breaks the line between them."""
    notebook = nbformat.read(path, as_version=4)
    for number, cell in enumerate(notebook.cells):
        streams = [output.get("name") for output in cell.get("outputs", [])]
        assert not any(a == b is not None for a, b in pairwise(streams)), f"cell {number}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_link_leads_to_a_heading_of_the_same_chapter(path):
    """Fails at [exercise 9.3](#Exercise-9.3-...): the site has a page for each section, so it leads nowhere."""
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.source for cell in cells if cell.cell_type == "markdown" and "](#" in cell.source] == []
