"""The two editions of a chapter, made from a small source."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from tools.notebooks import build, editions

SOURCE = '''\
# ---
# jupyter:
#   course:
#     minutes: 10
#     needs: nothing
# ---

# %% [markdown]
# # 98 · A chapter
#
# The hook.

# %% tags=["setup"]
from course_lib.notebook.claims import claim

# %%
print("same in both")

# %% nbgrader={"grade": false, "grade_id": "ex98-1-double", "locked": false, "schema_version": 3, "solution": true}
def double(x):
    """Return twice x."""
    ### BEGIN SOLUTION
    y = 2 * x
    return y
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex98-1-double-check", "locked": true, "points": 2, "solution": false}
ch98.double(double)

# %% nbgrader={"grade": false, "grade_id": "ex98-2-answer", "locked": false, "schema_version": 3, "solution": true}
answer = ...
### BEGIN SOLUTION
answer = 42
### END SOLUTION

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex98-3-why", "points": 2, "schema_version": 3, "solution": true}
# ### BEGIN SOLUTION
# Because it is so.
# ### END SOLUTION
'''


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "98_chapter.py"
    path.write_text(SOURCE, encoding="utf8")
    return path


@pytest.fixture
def chapter(source):
    return editions.chapter(source)


def sources_of(notebook):
    return [cell.source for cell in notebook.cells]


def test_the_students_edition_holds_stubs_and_no_solution(chapter):
    """Fails if any line of a solution survives, or if a stub loses its indentation."""
    student = editions.student(chapter)
    text = "\n".join(sources_of(student))
    for secret in ("2 * x", "answer = 42", "Because it is so", "SOLUTION"):
        assert secret not in text
    assert sources_of(student)[4] == (
        'def double(x):\n    """Return twice x."""\n    raise NotImplementedError("replace this line with your code")'
    )
    assert sources_of(student)[6] == "*End of exercise 98.1.*\n\n---"
    assert sources_of(student)[7] == "answer = ...\n# replace the ... above, or write your code here"
    assert sources_of(student)[8] == "*End of exercise 98.2.*\n\n---"
    assert sources_of(student)[9] == "*Write your answer here.*"


def test_an_exercise_ends_after_what_a_good_answer_contains():
    """Fails if the line stands between the answer and the cell that compares it, or after the text that follows."""
    answer = new_markdown_cell("mine", metadata={"nbgrader": {"grade_id": "ex98-3-explain"}})
    cells = [answer, new_markdown_cell("Paste it."), new_code_cell("ch98.why.compare(...)"), new_markdown_cell("## 2")]
    assert [cell.source[:15] for cell in editions.with_ends(cells)] == [
        "mine", "Paste it.", "ch98.why.compar", "*End of exercis", "## 2"
    ]  # fmt: skip


def test_one_tag_folds_a_cell_everywhere(source):
    """Fails if JupyterLab, Colab or the site does not get its mark, or a folded cell may be without a title."""
    source.write_text(SOURCE.replace("# %%\nprint(", '# %% tags=["fold"]\n# @title Set-up\nprint('), encoding="utf8")
    cell = editions.chapter(source).cells[3]
    assert editions.is_folded(cell)
    assert cell.metadata["cellView"] == "form"
    assert cell.metadata["tags"] == ["fold", "hide-input"]
    assert cell.metadata["mystnb"]["code_prompt_show"] == "Set-up"
    source.write_text(SOURCE.replace("# %%\nprint(", '# %% tags=["fold"]\nprint('), encoding="utf8")
    with pytest.raises(ValueError, match="must begin with a line '# @title"):
        editions.chapter(source)


def test_a_result_is_closed_and_an_optional_part_is_folded(source):
    more = '\n# %% tags=["reveal"]\nprint(2)\n\n# %% [markdown] tags=["deeper"]\n# ## Going deeper\n'
    source.write_text(SOURCE + more, encoding="utf8")
    *_, shown, deeper = editions.chapter(source).cells
    assert shown.metadata["jupyter"] == {"outputs_hidden": True}
    assert shown.metadata["tags"] == ["reveal", "hide-output"]
    assert deeper.metadata["jp-MarkdownHeadingCollapsed"] is True
    source.write_text(SOURCE + more.replace("# ## Going", "# Going"), encoding="utf8")
    with pytest.raises(ValueError, match="begins with a heading"):
        editions.chapter(source)


def test_colab_link_and_install_cell_are_put_in_from_the_one_address(chapter):
    title, install = chapter.cells[:2]
    repository = editions.address().removeprefix("https://github.com/")
    assert f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/98_chapter.ipynb" in title.source
    assert title.source.startswith("# 98 · A chapter\n\n[Open in Colab](")
    assert title.source.endswith("The hook.")
    assert f'"course_lib @ git+{editions.address()}"' in install.source


def test_ids_are_stable(source, chapter):
    """The same source gives the same ids; a cell put between leaves the other ids as they are."""
    ids = [cell.id for cell in chapter.cells]
    assert len(set(ids)) == len(ids)
    assert [cell.id for cell in editions.chapter(source).cells] == ids
    source.write_text(SOURCE.replace('# %%\nprint("same', '# %%\nprint(0)\n\n# %%\nprint("same'), encoding="utf8")
    longer = [cell.id for cell in editions.chapter(source).cells]
    assert [i for i in longer if i in ids] == ids
    assert len(longer) == len(ids) + 1


def test_equal_cells_get_different_ids(source):
    source.write_text(SOURCE + "\n# %%\nprint(1)\n\n# %%\nprint(1)\n", encoding="utf8")
    *_, first, second = editions.chapter(source).cells
    assert second.id == f"{first.id}-2"


def run_in_thought(student):
    """Give the student's edition the outputs that a run would give."""
    for count, cell in enumerate((c for c in student.cells if c.cell_type == "code"), 1):
        cell.execution_count, cell.outputs = count, []
    student.cells[3].outputs = [nbformat.v4.new_output("stream", name="stdout", text="same in both\n")]
    student.cells[5].outputs = [nbformat.v4.new_output("stream", name="stdout", text="not attempted yet: double\n")]
    return student


def test_the_instructors_edition_holds_solutions_shared_outputs_and_passed_checks(chapter):
    done = run_in_thought(editions.student(chapter))
    instructor = editions.instructor(chapter, done)
    assert sources_of(instructor)[4] == 'def double(x):\n    """Return twice x."""\n    y = 2 * x\n    return y'
    assert instructor.cells[3].outputs == done.cells[3].outputs
    assert instructor.cells[5].outputs[0].text == "passed: double\n"
    assert [c.execution_count for c in instructor.cells if c.cell_type == "code"] == [1, 2, 3, 4, 5, 6]


def test_a_solution_cell_with_output_is_refused(chapter):
    done = run_in_thought(editions.student(chapter))
    done.cells[4].outputs = [nbformat.v4.new_output("stream", name="stdout", text="hm\n")]
    with pytest.raises(ValueError, match="a solution cell must not have outputs"):
        editions.instructor(chapter, done)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("### BEGIN SOLUTION\nx = 1", "BEGIN SOLUTION without ### END SOLUTION"),
        ("x = 1\n### END SOLUTION", "END SOLUTION without ### BEGIN SOLUTION"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "inside another solution"),
    ],
)
def test_marks_that_do_not_pair_are_refused(source, message):
    """A mark left open would leak or swallow the rest of the cell."""
    with pytest.raises(ValueError, match=message):
        editions.without_solution(source)


def test_a_source_without_title_or_header_is_refused(source):
    source.write_text(SOURCE.replace("# # 98 · A chapter", "# A chapter"), encoding="utf8")
    with pytest.raises(ValueError, match="must be Markdown and begin with the title"):
        editions.chapter(source)
    source.write_text(SOURCE.replace("#     minutes: 10\n", ""), encoding="utf8")
    with pytest.raises(ValueError, match="course: minutes"):
        editions.chapter(source)


@pytest.fixture
def workshop(tmp_path, monkeypatch, source):
    """Let the build work in folders of its own."""
    monkeypatch.setattr(build, "NOTEBOOKS", tmp_path / "student")
    monkeypatch.setattr(build, "INSTRUCTOR", tmp_path / "instructor")
    source.write_text(SOURCE.replace("ch98.double(double)", "print('not attempted yet')"), encoding="utf8")
    return source


def test_only_what_changed_is_executed_again(workshop, monkeypatch):
    """Builds three times: new, unchanged, changed; fails if the second is executed or the third is not."""
    executed = []
    monkeypatch.setattr(build, "execute", lambda notebook: executed.append(1) or run_in_thought(notebook))
    assert build.build(workshop) is True
    assert build.build(workshop) is False
    workshop.write_text(workshop.read_text().replace("The hook.", "Another hook."), encoding="utf8")
    assert build.build(workshop) is True
    monkeypatch.setattr(build, "modules_used", lambda text: {workshop})  # a module that it uses changed
    assert build.build(workshop) is True
    assert len(executed) == 3
    assert (build.INSTRUCTOR / "98_chapter.ipynb").exists()


def test_modules_used_follows_imports():
    names = {
        p.relative_to(editions.ROOT).as_posix()
        for p in build.modules_used("from course_lib.notebook.claims import claim")
    }
    assert {f"course_lib/notebook/{name}.py" for name in ("claims", "display", "names")} <= names
    assert "course_lib/gpt.py" not in names
    names = {
        p.relative_to(editions.ROOT).as_posix() for p in build.modules_used("from course_lib.notebook import diagrams")
    }
    beside = {f"course_lib/notebook/{name}" for name in ("diagrams/__init__.py", "diagrams/ch13.py", "plots.py")}
    assert beside <= names
    names = {
        p.relative_to(editions.ROOT).as_posix() for p in build.modules_used("from course_lib.notebook import explorer")
    }
    assert {f"course_lib/notebook/{name}" for name in ("explorer.py", "explorer.html", "plots.py")} <= names


def test_a_notebook_is_really_executed(workshop):
    """One run with a kernel: outputs are stored, in order, and an unmarked error stops the build."""
    assert build.build(workshop)
    notebook = nbformat.read(build.NOTEBOOKS / "98_chapter.ipynb", as_version=4)
    assert notebook.cells[3].outputs[0].text == "same in both\n"
    assert [c.execution_count for c in notebook.cells if c.cell_type == "code"] == [1, 2, 3, 4, 5, 6]
    workshop.write_text(SOURCE.replace('print("same in both")', "1 / 0"), encoding="utf8")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        build.build(workshop)
    assert nbformat.read(build.NOTEBOOKS / "98_chapter.ipynb", as_version=4) == notebook  # the old one stays whole


def test_the_build_stores_which_visible_cells_were_slow_and_silent(monkeypatch):
    """One run with a kernel: fails if the silent cell is not named, or one with a bar, a folded or a quick one is."""
    monkeypatch.setattr(build, "SLOW_SECONDS", 0.5)
    work = "import time\nbegin = time.process_time()\nwhile time.process_time() < begin + 0.8:\n    pass"
    cells = {
        "silent": new_code_cell(work),
        "shows": new_code_cell(f"from tqdm import tqdm\nfor _ in tqdm(range(2)):\n    {work.splitlines()[0]}\n{work}"),
        "folded": new_code_cell(work, metadata={"jupyter": {"source_hidden": True}}),
        "quick": new_code_cell("print(sorted(set(globals()) & {'counted', 'tqdm', 'time'}))"),
    }
    for name, cell in cells.items():
        cell.id = name
    notebook = build.execute(nbformat.v4.new_notebook(cells=list(cells.values()), metadata={"course": {}}))
    assert notebook.metadata.course["silent"] == {"silent": 1}
    assert notebook.cells[3].outputs[0].text == "['time', 'tqdm']\n"  # what the build puts into the kernel is not seen
