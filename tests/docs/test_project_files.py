"""The files around the course: workflows, the container, licence, citation, changelog, contributing.

They cannot be run here, so they are held against what they name: targets, files, versions.
"""

import json
import re
import subprocess
import tomllib
import zipfile

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import course_lib
from tests.helpers.lab import SCREENSHOTS
from tools.notebooks import editions
from tools.notebooks.editions import ROOT

WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
DOCKERFILE = ROOT / ".devcontainer" / "Dockerfile"
OURS = [*WORKFLOWS.values(), *(ROOT / ".devcontainer").iterdir()]
OURS += [ROOT / name for name in ("LICENSE", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md")]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]


def workflow(name):
    """A workflow as a dict; YAML reads its key `on` as True."""
    return yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf8"))


def steps(name):
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def container():
    return json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf8"))


def targets():
    return re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE)


def missing(command):
    """What a command names that is not there: a make target, a module, a script that can be executed."""
    first, *rest = command.split()
    if first == "make":
        return [f"make {word}" for word in rest if "=" not in word and word not in targets()]
    if first == "python" and rest[0] == "-m":
        return [] if (ROOT / f"{rest[1].replace('.', '/')}.py").exists() else [rest[1]]
    script = ROOT / first
    return [] if script.is_file() and script.stat().st_mode & 0o100 else [first]


def within(version, requires):
    """Whether a version such as 3.12 lies in a range, by any of its patches."""
    return SpecifierSet(requires).contains(f"{version}.1" if version.count(".") == 1 else version)


@pytest.mark.parametrize("command", ["make no-such-target", "python -m tools.no_such", "no/such/script", "README.md"])
def test_a_command_that_names_nothing_is_seen(command):
    """Fails if the search below would find nothing wrong with anything."""
    assert missing(command)


def test_every_command_names_what_is_there():
    """Fails if a target, module or script that a workflow or the container runs is renamed or removed."""
    commands = [step["run"] for name in ("ci", "site") for step in steps(name) if "run" in step]
    commands.append(container()["postCreateCommand"])
    assert [name for command in commands for name in missing(command)] == []
    matrix = " ".join(step["run"] for step in steps("matrix") if "run" in step)
    files = re.findall(r"\btests/[\w/.]+", matrix)
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_asks_for_little(name):
    """Fails on a right to write that is not the publishing job's, a job without end, an action of strangers."""
    content = workflow(name)
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 90
        assert set(job.get("permissions", {})) <= ({"pages", "id-token"} if name == "site" else set())
    used = [step["uses"] for step in steps(name) if "uses" in step]
    assert [action for action in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", action)] == []


def test_ci_runs_what_runs_everywhere(project):
    """Fails if CI does more or less than .ci/run, on the wrong occasions, or loses the screenshots."""
    content = workflow("ci")
    assert set(content[True]) == {"push", "pull_request"}
    assert [step["run"] for step in steps("ci") if "run" in step] == [".ci/run"]
    assert content["jobs"]["test"]["timeout-minutes"] == 90
    given = [step["with"] for step in steps("ci") if "with" in step]
    assert within(given[0]["python-version"], project["requires-python"])
    assert all((ROOT / file).exists() for file in given[0]["cache-dependency-path"].split())
    assert ROOT / given[-1]["path"] == SCREENSHOTS


def test_the_matrix_is_the_supported_range(project):
    """Fails if pyproject.toml allows a Python that is not tried, or a torch below the lowest that is."""
    content = workflow("matrix")
    assert set(content[True]) == {"schedule", "workflow_dispatch"}
    tried = content["jobs"]["try"]["strategy"]["matrix"]
    minors = [f"3.{minor}" for minor in range(30) if within(f"3.{minor}", project["requires-python"])]
    assert tried["python"] == minors
    (torch,) = [r.specifier for r in map(Requirement, project["dependencies"]) if r.name == "torch"]
    (lowest,) = [bound.version for bound in torch if bound.operator == ">="]
    pinned = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf8"), re.MULTILINE).group(1)
    lowest = f"{lowest}.0" if lowest.count(".") == 1 else lowest
    assert tried["torch"] == [f"torch=={lowest}", f"torch=={pinned}", "torch"]
    assert torch.contains(pinned)
    for more in tried["include"]:
        assert more["python"] in tried["python"]
        assert more["torch"] in tried["torch"]
        assert all(Requirement(text) for text in more["also"].split())


@pytest.mark.parametrize("script", [step["run"] for step in steps("matrix") if "run" in step])
def test_the_matrix_is_shell(script):
    """Fails if a step has a quote or a loop without its end."""
    subprocess.run(["bash", "-n", "-c", re.sub(r"\$\{\{.*?\}\}", "x", script)], check=True)


def test_the_site_is_published_from_main_only():
    """Fails if a branch or a pull request could publish, or another folder than the one that is built."""
    content = workflow("site")
    assert content[True]["push"] == {"branches": ["main"]}
    assert set(content[True]) == {"push", "workflow_dispatch"}
    assert content["jobs"]["publish"]["needs"] == "build"
    (upload,) = [step for step in steps("site") if "upload-pages-artifact" in step.get("uses", "")]
    assert upload["with"]["path"] == "build/site"


def test_the_container_is_an_ordinary_users(project):
    """Fails if it runs as root, as a user that nobody made, or on a Python that is not supported."""
    dockerfile = DOCKERFILE.read_text(encoding="utf8")
    user = container()["remoteUser"]
    assert user != "root"
    assert re.search(rf"useradd .*\b{user}$", dockerfile, re.MULTILINE)
    assert dockerfile.rstrip().endswith(f"USER {user}")
    assert within(re.search(r"^FROM python:(3\.\d+)", dockerfile, re.MULTILINE).group(1), project["requires-python"])
    assert container()["build"]["dockerfile"] == DOCKERFILE.name
    venv = re.search(r"^VENV := (\S+)$", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE).group(1)
    assert f"/{venv}/bin/python" in container()["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]


def test_the_citation_says_what_pyproject_says(project):
    """Fails if a version or the licence differs, a required key is missing, or a person is named."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    assert citation["title"]
    assert citation["version"] == project["version"] == course_lib.__version__
    assert citation["license"] == project["license"] == "MIT"
    assert [set(author) for author in citation["authors"]] == [{"name"}]


def test_the_licence_is_in_every_package(project):
    """Fails if the wheel would go out without it, it is another than pyproject.toml says, or nobody finds it."""
    (file,) = project["license-files"]
    assert (ROOT / file).read_text(encoding="utf8").startswith(project["license"])
    assert f"]({file})" in (ROOT / "README.md").read_text(encoding="utf8")


def test_the_changelog_has_this_version(project):
    """Fails if a version is raised without saying what it brings."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf8")
    versions = re.findall(r"^## \[(.+?)\] - (?:unreleased|\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert versions[0] == project["version"]
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) <= {
        "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security",
    }  # fmt: skip


def test_contributing_names_what_is_there():
    """Fails if a make target or a file that the page sends an author to does not exist; NN stands for any chapter."""
    spans = re.findall(r"`([^`\n]+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf8"))
    commands = [span for span in spans if re.match(r"make |python -m |\.ci/", span)]
    assert len(commands) > 8
    assert [name for command in commands for name in missing(command)] == []
    paths = [span for span in spans if re.fullmatch(r"[\w.-]+(/[\w.-]*)+|[\w-]+\.(md|toml|txt|cff|yml)", span)]
    assert len(paths) > 15
    patterns = {path: re.sub(r"NAME|topic", "*", path.replace("NN", "[0-9][0-9]")) for path in paths}
    built = ("build/", ".venv")
    assert [p for p, pattern in patterns.items() if not p.startswith(built) and not any(ROOT.glob(pattern))] == []


def test_no_file_names_a_registry_or_a_place_of_one_machine():
    """Fails if a workflow or the container is tied to one registry's address or one machine's folders."""
    forbidden = re.compile(r"(?<![\w.}])/(?:home|root|work|Users)/\w|pypi\.org|npmjs|pytorch\.org|ghcr\.io|mcr\.micro")
    found = {path.name: hit.group() for path in OURS if (hit := forbidden.search(path.read_text(encoding="utf8")))}
    assert found == {}


def test_make_solutions_opens_the_solved_chapter():
    """Fails if `make solutions` builds another edition than the file that it opens, or opens one without solutions."""
    plan = subprocess.run(
        ["make", "--dry-run", "--silent", "solutions", "CHAPTER=05"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "tools.notebooks.build 05 --instructor" in plan
    opened = re.search(r"jupyter lab .*?(\S+\.ipynb)", plan)[1]
    source = next(path for path in editions.sources() if path.stem.startswith("05"))
    assert (editions.INSTRUCTOR / f"{source.stem}.ipynb").relative_to(ROOT).match(opened)
    stored = nbformat.read(ROOT / "notebooks" / f"{source.stem}.ipynb", as_version=4)
    solved = editions.instructor(editions.chapter(source), stored)
    assert not any("raise NotImplementedError" in cell.source for cell in solved.cells if editions.is_solution(cell))


def test_the_students_copy_holds_no_solution_and_installs(tmp_path):
    """Fails if what students get holds a solution or a hidden test, or lacks what the package is made from."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    subprocess.run(["make", "--silent", "students-copy"], cwd=ROOT, check=True)
    with zipfile.ZipFile(ROOT / "build" / "students-copy.zip") as copy:
        names = {name.removeprefix("sequence-models/") for name in copy.namelist()}
        assert {name.partition("/")[0] for name in names if "/" in name} == {
            "course_lib", "images", "notebooks", "results"
        }  # fmt: skip
        assert not [name for name in names if name.startswith("notebooks/source")]
        assert not [name for name in copy.namelist() if b"### BEGIN SOLUTION" in copy.read(name)]
        copy.extractall(tmp_path)
    folder = tmp_path / "sequence-models"
    for place in tomllib.loads((folder / "pyproject.toml").read_text("utf8"))["tool"]["hatch"]["build"]["targets"][
        "sdist"
    ]["include"]:
        assert (folder / place).exists(), place


def test_the_readme_says_what_the_notebooks_hold():
    """Fails if fewer claims are checked than the first screen says, or MUTANTS.md has other numbers."""
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    words = r"More than (\d+) sentences.*of ([\d,]+) wrong answers tried on these checks, ([\d.]+) %"
    least, tried, killed = re.search(words, readme, re.S).groups()
    claims = 0
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf8"))["cells"]:
            texts = ["".join(output.get("data", {}).get("text/markdown", "")) for output in cell.get("outputs", [])]
            claims += sum(text.startswith("✓") for text in texts)
    assert claims > int(least)
    mutants = (ROOT / "classroom" / "MUTANTS.md").read_text(encoding="utf8")
    assert f"{killed}% of {tried.replace(',', '')} wrong answers" in mutants
