import pytest
import torch

from course_lib.notebook import run_size


@pytest.mark.parametrize(("name", "value"), [("quick", 3), ("full", 11)])
def test_the_environment_decides(monkeypatch, name, value):
    """Fails if COURSE_PROFILE is ignored or the two values are swapped."""
    monkeypatch.setenv("COURSE_PROFILE", name)
    assert run_size.name() == name
    assert run_size.pick(3, 11) == value


@pytest.mark.parametrize(("gpu", "name"), [(False, "quick"), (True, "full")])
def test_without_the_environment_a_gpu_decides(monkeypatch, gpu, name):
    """Fails if the default does not follow the presence of a GPU."""
    monkeypatch.delenv("COURSE_PROFILE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert run_size.name() == name


def test_an_unknown_profile_names_both(monkeypatch):
    """Fails if a misspelt profile silently runs one of the two."""
    monkeypatch.setenv("COURSE_PROFILE", "Full")
    with pytest.raises(ValueError, match="COURSE_PROFILE is 'Full'; it must be 'quick' or 'full'"):
        run_size.pick(1, 2)
