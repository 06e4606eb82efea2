"""What nbgrader runs in place of its own steps; nbgrader_config.py names them."""

from pathlib import Path

import nbformat
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Float, Integer

from classroom.grading import SECONDS, graded, release_of, restored
from tools import editions


class Restore(NbGraderPreprocessor):
    """Before anything else: the released notebook with the student's answers in it."""

    def preprocess(self, nb, resources):
        """Return the restored notebook."""
        names = resources["nbgrader"]
        folder = Path(self.parent.parent.coursedir.format_path("release", ".", names["assignment"]))
        return restored(release_of(folder / f"{names['notebook']}.ipynb"), nb), resources


class Examine(NbGraderPreprocessor):
    """In place of running the notebook: a worker, the hidden tests, the visible checks."""

    seed = Integer(0, help="seed of the hidden tests' inputs; chosen when an assignment is released").tag(config=True)
    seconds = Float(SECONDS, help="time for one cell or one question").tag(config=True)

    def preprocess(self, nb, resources):
        """Write into every check cell what was found."""
        found = graded(nb, self.seed, self.seconds)
        for cell in nb.cells:
            if not editions.is_check(cell):
                continue
            wrong = found[cell.metadata.nbgrader.grade_id]
            if wrong is None:
                said = "".join(f"passed: {name}\n" for name in editions.check_names(cell.source))
                cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=said)]
            else:
                cell.outputs = [nbformat.v4.new_output("error", ename="NotYet", evalue=wrong, traceback=[wrong])]
        return nb, resources
