"""What nbgrader runs when it makes the students' notebooks; nbgrader_config.py names it."""

from nbgrader.preprocessors import NbGraderPreprocessor

from tools.notebooks import editions


class Stubs(NbGraderPreprocessor):
    """In place of nbgrader's ClearSolutions: the course's own stubs, with which a notebook runs to its end."""

    def preprocess(self, nb, resources):
        """Return the student's edition."""
        return editions.student(nb), resources
