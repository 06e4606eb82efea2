"""What dresses a notebook: claims, figures, tables, diagrams, the ledger's numbers. Nothing here is taught."""

from course_lib.notebook import diagrams, ledger, plots
from course_lib.notebook.claims import claim, predict
from course_lib.notebook.display import markdown, show, show_source, source, table
from course_lib.notebook.explorer import explore

__all__ = [
    "claim",
    "diagrams",
    "explore",
    "ledger",
    "markdown",
    "plots",
    "predict",
    "show",
    "show_source",
    "source",
    "table",
]
