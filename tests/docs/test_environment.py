"""pyproject.toml, constraints.txt and environment.yml agree, and the installed packages are the pinned ones."""

import importlib.metadata
import re
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tools.notebooks.editions import ROOT
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


def needed(requirements, extras, found):
    """Return the distributions that requirements need, and what these need, and so on.

    Args:
        requirements: list of str, such as "torch>=2.11; python_version < '3.14'".
        extras: of these requirements, such as ["lab"]: markers may ask for them.
        found: {name: Distribution} of those that are installed.

    Returns:
        {name: Distribution, or None if it is not installed}.
    """
    todo, seen = [(line, [*extras, ""]) for line in requirements], set()
    while todo:
        line, extras = todo.pop()
        requirement = Requirement(line)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = canonicalize_name(requirement.name)
        wanted = {(name, extra) for extra in [*requirement.extras, ""]} - seen
        seen |= wanted
        if wanted and name in found:
            todo += [(line, [extra for _, extra in wanted]) for line in found[name].requires or []]
    return {name: found.get(name) for name, _ in seen}


def complaints(distributions, pins, pythons):
    """Return what is wrong: a distribution that is missing, not the pinned one, or not for all of these Pythons."""
    said = []
    for name, found in sorted(distributions.items()):
        if found is None:
            said.append(f"{name} is not installed")
        elif found.version.partition("+")[0] != pins.get(name):
            said.append(f"{name} {found.version} is installed, {pins.get(name, 'nothing')} is pinned")
        elif refused := [p for p in pythons if p not in SpecifierSet(found.metadata.get("Requires-Python", ""))]:
            said.append(f"{name}=={found.version} does not install with Python {', '.join(refused)}")
    return said


@pytest.fixture(scope="module")
def pythons(project):
    """Every Python that pyproject.toml promises: 3.11.0 is among them, not only the one that runs this."""
    every = [f"3.{minor}.{micro}" for minor in range(30) for micro in range(30)]
    return [python for python in every if python in SpecifierSet(project["requires-python"])]


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        (".venv", ["lab", "dev"]),
        pytest.param(".venv", ["lab", "dev", "slow", "site"], marks=pytest.mark.slow),
        pytest.param(".venv-classroom", ["classroom"], marks=pytest.mark.slow),
    ],
)
def test_what_is_installed_is_pinned_and_installs_with_every_promised_python(folder, extras, project, pins, pythons):
    """Fails with a name: Debian 12's Python is 3.11.2, and a package that needs 3.11.5 is told here, not there."""
    packages = next((ROOT / folder).glob("lib/python3.*/site-packages"), None)
    if packages is None or (folder == ".venv" and not (ROOT / folder).samefile(sys.prefix)):
        pytest.skip(f"{folder} is not what make built: its versions are the reader's own choice")
    found = {canonicalize_name(d.name): d for d in importlib.metadata.distributions(path=[str(packages)])}
    direct = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    distributions = needed(direct, [], found)
    cuda = [name for name in distributions if name.startswith(("nvidia-", "cuda-")) or name == "triton"]
    for name in cuda:  # torch pins them itself
        del distributions[name]
    assert len(distributions) > 100
    assert complaints(distributions, pins, pythons) == []


def test_a_package_that_the_lowest_python_cannot_have_is_named(tmp_path, pins, pythons):
    """So the test above can fail, also for what is needed only by what is needed."""
    assert pythons[0] == "3.11.0"
    assert {python[:5] for python in pythons} == {"3.11.", "3.12.", "3.13."}
    for name, version, header in [
        ("nbconvert", pins["nbconvert"], "Requires-Dist: soupsieve>=2; python_version >= '3'\nRequires-Dist: tinycss2"),
        ("soupsieve", pins["soupsieve"], "Requires-Python: >=3.11.5"),
        ("bleach", "0.1", "Requires-Dist: numpy; extra == 'css'"),
    ]:
        (tmp_path / f"{name}.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{header}\n"
        (tmp_path / f"{name}.dist-info" / "METADATA").write_text(text, encoding="utf8")
    found = {canonicalize_name(d.name): d for d in importlib.metadata.distributions(path=[str(tmp_path)])}
    distributions = needed(["nbconvert", "bleach[css]", "pandas; extra == 'no'"], [], found)
    said = complaints(distributions, pins, pythons)
    assert [line.split()[0] for line in said] == ["bleach", "numpy", f"soupsieve=={pins['soupsieve']}", "tinycss2"]
    assert said[0] == f"bleach 0.1 is installed, {pins['bleach']} is pinned"
    assert said[2].endswith("Python 3.11.0, 3.11.1, 3.11.2, 3.11.3, 3.11.4")


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
    own = {"tests/notebooks/test_guards.py", "tests/docs/test_environment.py", "tools/notebooks/guards.py"}
    forbidden = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w|pypi\.org|registry\.npmjs|download\.pytorch\.org")
    kinds = ("*.py", "*.toml", "*.yml", "*.txt", "*.md", "Makefile", ".ci/run", "results/*.json", "notebooks/*.ipynb")
    made = {"build", "dist", "grading", ".git"}
    tops = [top for top in ROOT.iterdir() if top.name not in made and not top.name.startswith(".venv")]
    paths = [path.relative_to(ROOT) for top in tops for path in (top, *top.rglob("*")) if path.is_file()]
    read = [path for path in paths if path.as_posix() not in own and any(path.match(kind) for kind in kinds)]
    assert len(read) > 100
    found = [
        f"{path}: {hit.group()}" for path in read if (hit := forbidden.search((ROOT / path).read_text(encoding="utf8")))
    ]
    assert found == []
