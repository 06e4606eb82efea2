"""The rule for a chapter's minutes, on a small notebook, and what the chapters say."""

import pytest
from nbformat import v4

from tools.notebooks import editions, minutes


def cells(*sources):
    """Markdown cells, and code cells where a source begins with `>`; `>#` is folded."""
    made = []
    for source in sources:
        if not source.startswith(">"):
            made.append(v4.new_markdown_cell(source))
            continue
        made.append(v4.new_code_cell(source.removeprefix(">")))
        if source.startswith(">#"):
            made[-1].metadata["jupyter"] = {"source_hidden": True}
    return v4.new_notebook(cells=made)


def test_what_is_counted():
    """Fails if a formula, a reference, an exercise's text or an optional part counts as words, or a claim as a cell."""
    notebook = cells(
        "one two $$ x = 1 $$ three",
        ">y = 1",
        ">figures.curve(y)",
        '># @title Folded\ndiagrams.show("loop")',
        ">#@title Claims\nclaim()",
        "four\n\n### Exercise 1.1 · Title\n\nDifficulty ●○○○○ · 15 minutes · needs section 1\n\nnot counted",
        ">def answer(): ...",
        "not counted",
        "*End of exercise 1.1.*\n\n---",
        "five",
        "## Summary\n\neight\n\n## References\n\nnot counted",
        ">z = 1",
        "## Going deeper",
    )
    assert minutes.counted(notebook) == {"words": 8, "cells": 3, "exercises": 15}
    assert minutes.minutes(notebook) == 20  # 0.08 + 4.5 + 15


@pytest.mark.parametrize("path", editions.sources(), ids=lambda path: path.stem[:2])
def test_the_header_follows_the_rule(path):
    """Fails if a chapter has grown, or an exercise's time has changed, and the header has not."""
    notebook = editions.chapter(path)
    assert abs(notebook.metadata["course"]["minutes"] - minutes.minutes(notebook)) <= 10
