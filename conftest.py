"""Settings for every test: one thread, no window, no progress bars, no figures left open."""

import os
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MPLBACKEND"] = "agg"
os.environ["TQDM_DISABLE"] = "1"
for name in ("COURSE_CHECKS", "COURSE_PROFILE", "NBGRADER_EXECUTION"):
    os.environ.pop(name, None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Slow tests of a file share what it builds, so one process runs them; but each chapter's cells are run by any."""
    for item in items:
        alone = "test_every_cell_can_be_run_again" in item.name
        item.add_marker(pytest.mark.xdist_group(item.nodeid if alone else item.path.stem))


@pytest.fixture(autouse=True)
def _print_as_usual():
    """A chapter's first cell may change how tensors are printed; no test may depend on which ran before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_printoptions(profile="default")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
