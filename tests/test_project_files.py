"""The files around the course: workflows, the container, licence, citation, changelog, contributing.

They cannot be run here, so they are held against what they name: targets, files, versions.
"""

import json
import re
import subprocess
import tomllib
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import course_lib
from tests.lab import SCREENSHOTS
from tools import matrix
from tools.editions import ROOT

WORKFLOWS = {path.stem: path for path in (ROOT / ".github" / "workflows").glob("*.yml")}
DOCKERFILE = ROOT / ".devcontainer" / "Dockerfile"
OURS = [*WORKFLOWS.values(), *(ROOT / ".devcontainer").iterdir()]
OURS += [ROOT / name for name in ("LICENSE", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "tools/matrix.py")]


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
    commands = [step["run"] for name in WORKFLOWS for step in steps(name) if "run" in step]
    commands.append(container()["postCreateCommand"])
    assert len(commands) == 4
    assert [name for command in commands for name in missing(command)] == []


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
    assert tried["torch"] == [f"{lowest}.0" if lowest.count(".") == 1 else lowest, pinned, "newest"]
    assert all(torch.contains(version) for version in tried["torch"][:-1])
    for more in tried["include"]:
        assert more["python"] in tried["python"]
        assert more["torch"] in tried["torch"]
        assert all(Requirement(text) for text in more["also"].removeprefix("-- ").split())


def test_the_matrix_calls_the_tool_as_the_tool_wants(monkeypatch):
    """Fails if an option is renamed in one place, or what follows -- does not reach pip."""
    asked = []
    monkeypatch.setattr(matrix, "install", lambda folder, python, requirements: asked.append(requirements))
    (command,) = [step["run"] for step in steps("matrix") if "run" in step]
    for torch, also in (("newest", ""), ("2.11.0", "-- ipython==7.34.0 numpy==2.1.3")):
        filled = command.replace("${{ matrix.torch }}", torch).replace("${{ matrix.also }}", also)
        assert matrix.main(filled.split()[3:]) == 1  # nothing was installed
    assert asked == [[], ["torch==2.11.0", "ipython==7.34.0", "numpy==2.1.3"]]


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
    assert citation["title"] == "Sequence models, from the RNN to GPT"
    assert citation["version"] == project["version"] == course_lib.__version__
    assert citation["license"] == project["license"] == "MIT"
    assert [set(author) for author in citation["authors"]] == [{"name"}]


def test_the_licence_is_in_every_package(project):
    """Fails if the wheel would go out without it, or it names others than the citation does."""
    assert project["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text(encoding="utf8")
    assert text.startswith("MIT License\n\nCopyright (c) 2026 The authors of the course Sequence models\n")
    assert "](LICENSE)" in (ROOT / "README.md").read_text(encoding="utf8")


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


def test_a_failing_part_of_the_matrix_is_told(capsys, tmp_path):
    """Fails if the tool could end well although a part did not, or hide what that part said."""
    assert matrix.run("good", tmp_path, matrix.sys.executable, "-c", "print('first'); print('last')")
    assert not matrix.run(
        "bad", tmp_path, matrix.sys.executable, "-c", "print('why', flush=True); raise SystemExit('broken')"
    )
    assert capsys.readouterr().out == "good: ok last\nbad: FAILED broken\nwhy\nbroken\n"


def test_the_matrix_stops_where_going_on_is_useless(monkeypatch, tmp_path):
    """Fails if it tests in an environment that could not be made."""
    asked = []
    monkeypatch.setattr(matrix, "run", lambda part, *_: asked.append(part) or part != "wheel")
    assert matrix.install(tmp_path, "python3", []) is None
    assert asked == ["environment", "wheel"]


def test_the_matrix_tries_everything_away_from_the_checkout(monkeypatch, tmp_path):
    """Fails if a part runs where the checkout's library would be found, or one failure keeps others from running."""
    asked = {}
    monkeypatch.setattr(matrix, "run", lambda part, folder, *command: asked.update({part: folder}) or part != "modules")
    notebooks = sorted((ROOT / "notebooks").glob("0[1-2]_*.ipynb"))
    assert matrix.try_all(tmp_path, "python3", notebooks) == [False, True, True, True]
    assert [folder.parent for folder in asked.values()] == [tmp_path] * 4
    assert not (tmp_path / "unit" / "course_lib").exists()
    assert all((tmp_path / "unit" / test).exists() for test in matrix.TESTS)
    assert [path.name for path in asked[notebooks[0].stem].iterdir()] == [notebooks[0].name]


def test_an_unknown_chapter_is_named(capsys):
    """Fails if a slip of the pen starts an hour's work on something else."""
    with pytest.raises(SystemExit):
        matrix.main(["--chapters", "01", "77"])
    assert "no chapter 77; there are 01, 02" in capsys.readouterr().err


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
