"""The README's *Your own texts* runs as it stands, on a newcomer's file."""

import os
import random
import re
import subprocess
import sys

import torch

from tools.notebooks.editions import ROOT


def test_the_readmes_classifier_learns_and_is_saved(tmp_path):
    """Fails if the lines are more than 15, stop with an error, or judge a text of the kind they learned otherwise."""
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    (code,) = re.findall(r"```python\n(.*?)```", readme.split("## Your own texts")[1].split("\n## ")[0], re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    draw, rows = random.Random(0), []
    for _ in range(200):
        label = draw.choice(["good", "bad"])
        adjective = draw.choice(["charming", "superb", "warm"] if label == "good" else ["dull", "tired", "bleak"])
        rows.append(f"{label}\tThe {draw.choice(['film', 'plot', 'cast', 'end'])} was {adjective}, I think.\n")
    (tmp_path / "texts.tsv").write_text("".join(rows), encoding="utf8")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    run = [sys.executable, "-c", f"import torch; torch.manual_seed(0)\n{code}"]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("epoch 1  train_loss")
    assert lines[-1] == "good"
    assert torch.load(tmp_path / "texts.pt", weights_only=True).keys() == {"model", "state"}
