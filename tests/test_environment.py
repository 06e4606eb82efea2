"""pyproject.toml, constraints.txt and environment.yml agree, and the installed packages are the pinned ones."""

import importlib.metadata
import re
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.editions import ROOT
from tools.readme import BEGIN, END, filled

PRESCRIBED = {"jupyterlab", "torch", "torchtext", "matplotlib", "seaborn", "nbval", "jupytext"}


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]


@pytest.fixture(scope="module")
def requirements(project):
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    return {canonicalize_name(r.name): r for r in map(Requirement, [*project["dependencies"], *extras])}


@pytest.fixture(scope="module")
def pins():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.fixture(scope="module")
def conda():
    content = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf8"))["dependencies"]
    return content[:-1], content[-1]["pip"]


def test_every_dependency_is_pinned_within_its_range(requirements, pins):
    for name, requirement in requirements.items():
        assert name in pins, f"{name} is missing from constraints.txt"
        assert requirement.specifier.contains(pins[name]), f"{name}=={pins[name]} is outside {requirement.specifier}"


def test_pins_name_no_local_build(pins):
    """torch is pinned as 2.13.0, not 2.13.0+cpu, which only one kind of machine could install."""
    assert [v for v in pins.values() if "+" in v] == []


def test_conda_users_get_the_same(requirements, conda, project):
    outside, pip = conda
    assert f"python{project['requires-python']}" in outside
    assert pip[0] == "-c constraints.txt"
    assert pip[-1] == "-e .[lab,dev]"
    named = {canonicalize_name(r.name): r for r in map(Requirement, pip[1:-1])}
    assert set(named) == PRESCRIBED
    for name, requirement in named.items():
        assert requirement.specifier == requirements[name].specifier, name


def test_what_is_installed_is_what_is_pinned(requirements, pins):
    """Only for the extras that this environment has; a fresh `make test` has lab and dev."""
    others = {"hatchling", "playwright", "nbgrader", "sphinx", "myst-nb", "sphinx-book-theme", "linkify-it-py"}
    made = ROOT / ".venv"
    if not made.exists() or not made.samefile(sys.prefix):
        pytest.skip("not the environment that make builds: its versions are the reader's own choice")
    for name in requirements:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            assert name in others, f"{name} is not installed"
            continue
        assert version.partition("+")[0] == pins[name], name


def test_the_readme_shows_the_course_map_as_it_is():
    text = (ROOT / "README.md").read_text(encoding="utf8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert filled(text) == text, "run make notebooks: the course map of README.md is out of date"


def test_the_address_stands_in_one_place(project):
    """Badges and install cells are made from it; nothing else may repeat it."""
    address = project["urls"]["Repository"].removeprefix("https://")
    elsewhere = [
        path
        for pattern in (
            "course_lib/**/*.py",
            "tools/**/*.py",
            "tests/**/*.py",
            "notebooks/source/*.py",
            "environment.yml",
        )
        for path in ROOT.glob(pattern)
        if address in path.read_text(encoding="utf8")
    ]
    assert elsewhere == []


def test_links_between_files_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf8")
    targets = [t for t in re.findall(r"\]\(([^)#]+)", text) + re.findall(r'src="([^"]+)"', text) if "://" not in t]
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_no_docstring_holds_a_control_character():
    """A formula in a string that is not raw turns \\t into a tab and \\b into a backspace."""
    import ast

    for path in [*ROOT.glob("course_lib/**/*.py"), *ROOT.glob("tools/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node, clean=False) or ""
                assert not re.search(r"[\x00-\x09\x0b-\x1f]", text), f"{path.name}: {getattr(node, 'name', 'module')}"


def test_no_file_names_a_place_of_one_machine():
    """Absolute paths, and package registries' hosts, do not belong into the project."""
    own = {"tests/test_guards.py", "tests/test_environment.py", "tools/guards.py"}
    forbidden = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w|pypi\.org|registry\.npmjs|download\.pytorch\.org")
    kinds = (
        "**/*.py",
        "*.toml",
        "*.yml",
        "*.txt",
        "*.md",
        "Makefile",
        ".ci/run",
        "results/*.json",
        "notebooks/*.ipynb",
    )
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for kind in kinds
        for path in ROOT.glob(kind)
        if not {".venv", "build", "dist"} & set(path.relative_to(ROOT).parts)
        and path.relative_to(ROOT).as_posix() not in own
        and (hit := forbidden.search(path.read_text(encoding="utf8")))
    ]
    assert found == []
