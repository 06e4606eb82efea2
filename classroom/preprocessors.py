"""What nbgrader runs in place of its own steps; nbgrader_config.py names them."""

import secrets
from pathlib import Path

import nbformat
from nbgrader.preprocessors import NbGraderPreprocessor, OverwriteCells
from traitlets import Bool, Float, Integer

from classroom.grading import BUDGET, NOT_JUDGED, SECONDS, Refused, judged, release_of, restored
from classroom.pages import harmless
from tools.notebooks import editions


class Restore(NbGraderPreprocessor):
    """Before anything else: the released notebook with the student's answers in it, as text that does nothing."""

    def preprocess(self, nb, resources):
        """Return the restored notebook."""
        names = resources["nbgrader"]
        folder = Path(self.parent.parent.coursedir.format_path("release", ".", names["assignment"]))
        notebook = restored(release_of(folder / f"{names['notebook']}.ipynb"), nb)
        for cell in notebook.cells:
            if cell.metadata.get("classroom") in ("answer", "own"):
                harmless(cell)
        return notebook, resources


class Overwrite(OverwriteCells):
    """Puts the hidden tests back, without a warning for each: `Restore` has seen to all else."""

    def report_change(self, name, attr, old, new):
        """Say it to whoever asks for details."""
        self.log.debug("%s of %s is put back", attr, name)


class Examine(NbGraderPreprocessor):
    """In place of running the notebook: a judge, a worker, the hidden tests, the visible checks."""

    seed = Integer(None, allow_none=True, help="of the hidden tests' inputs; by default another one each time").tag(
        config=True
    )
    seconds = Float(SECONDS, help="time for one cell or one question").tag(config=True)
    budget = Float(BUDGET, help="time for one notebook").tag(config=True)
    unconfined = Bool(False, help="go on where the kernel does not confine the students' code").tag(config=True)

    def preprocess(self, nb, resources):
        """Write into every check cell what was found, and into the metadata what only instructors read."""
        seed = secrets.randbelow(2**31) if self.seed is None else self.seed
        try:
            found = judged(nb, seed, self.seconds, self.budget, self.unconfined)
        except Refused as refused:
            raise SystemExit(f"NOTHING IS GRADED: {refused}") from None
        nb.metadata["classroom"] = {"seed": seed}
        for cell in nb.cells:
            if not editions.is_check(cell):
                continue
            wrong, why = found[cell.metadata.nbgrader.grade_id]
            if wrong and NOT_JUDGED in wrong:
                self.log.warning("%s could not be judged; please look at it: %s", cell.metadata.nbgrader.grade_id, why)
            if wrong is None:
                said = "".join(f"passed: {name}\n" for name in editions.check_names(cell.source))
                cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=said)]
            else:
                cell.outputs = [nbformat.v4.new_output("error", ename="NotYet", evalue=wrong, traceback=[wrong])]
                cell.metadata["classroom"] = {"why": why}
        return nb, resources
