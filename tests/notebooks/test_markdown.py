"""The stored notebooks' texts, as a browser reads them."""

import re

import nbformat
import pytest

from tools.notebooks.editions import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_markdown_swallows_no_token(path):
    """Fails if a text or an output has <eos> without backticks: a browser takes it for a tag and shows nothing."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [out.data.get("text/markdown", "") for cell in cells for out in cell.get("outputs", []) if "data" in out]
    for text in [cell.source for cell in cells if cell.cell_type == "markdown"] + outputs:
        shown = re.sub(r"```.*?```|`[^`]*`|[$][^$]*[$]", "", text, flags=re.DOTALL)
        # a claim's numbers, what a guess is compared with, a fold
        shown = re.sub(r"</?(small|b|details|summary)>", "", shown)
        assert re.findall(r"</?[a-z][^>]*>", shown, flags=re.IGNORECASE) == [], shown
