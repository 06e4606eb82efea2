import io
import sys
import types

import pytest

from course_lib.progress import progress


class Terminal(io.StringIO):
    """A standard error that somebody watches."""

    def isatty(self):
        return True


def test_nobody_watches_nothing_is_written(monkeypatch, capsys):
    """Fails if a bar is drawn into a file or a log."""
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    assert list(progress(iter([2, 3, 5]), label="primes")) == [2, 3, 5]
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_labelled_bar(monkeypatch):
    """Fails if the bar, its label or the total of an iterable without length is missing."""
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(progress(iter([2, 3, 5]), total=3, label="primes")) == [2, 3, 5]
    assert "primes" in sys.stderr.getvalue()
    assert "0/3" in sys.stderr.getvalue()


def test_the_environment_turns_the_bar_off(monkeypatch):
    """Fails if COURSE_PROGRESS=0 is ignored on a terminal."""
    monkeypatch.setenv("COURSE_PROGRESS", "0")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(progress([2, 3, 5])) == [2, 3, 5]
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(("shell", "watched"), [(types.SimpleNamespace(kernel=1), True), (None, False)])
def test_a_notebook_is_watched_plain_ipython_files_are_not(monkeypatch, shell, watched):
    """Fails if an interactive kernel gets no bar, or an imported but idle IPython counts as one."""
    monkeypatch.delenv("COURSE_PROGRESS", raising=False)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert list(progress([2, 3], label="kernel")) == [2, 3]
    assert ("kernel" in sys.stderr.getvalue()) is watched
