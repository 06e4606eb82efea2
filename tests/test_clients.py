"""Slow: the notebooks where students really open them (make test-slow).

Colab's conditions: a notebook alone in an empty folder, the library from a built wheel, no
network. JupyterLab in a real browser: opens, runs from top to bottom, shows no error and
asks no other host for anything. Screenshots are left in build/screenshots.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tools import editions

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted(editions.NOTEBOOKS.glob("*.ipynb"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NOWHERE = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
QUIET = {"OMP_NUM_THREADS": "1", "COURSE_PROGRESS": "0"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The library as a wheel installs it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(editions.ROOT)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("course_lib-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_alone_with_the_wheel(path, site, tmp_path):
    """Outputs equal the stored ones with nothing but the wheel; fails if a file of the checkout was needed."""
    shutil.copy(path, tmp_path)
    environment = {**os.environ, **QUIET, **NOWHERE, "PYTHONPATH": str(site), "COURSE_DATA": str(tmp_path / "empty")}
    environment.pop("PYTEST_CURRENT_TEST", None)
    where = subprocess.run(
        [sys.executable, "-c", "import course_lib; print(course_lib.__file__)"],
        env=environment, cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(site))
    sanitize = str(editions.ROOT / "tests" / "nbval_sanitize.cfg")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env",
         "--nbval-cell-timeout=120", "--nbval-sanitize-with", sanitize, path.name],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout


@pytest.fixture
def lab(tmp_path):
    """A JupyterLab server on loopback over copies of the notebooks, with settings of its own."""
    folder = tmp_path / "course"
    shutil.copytree(editions.NOTEBOOKS, folder, ignore=shutil.ignore_patterns("source", ".*"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    environment = {**os.environ, **QUIET, **{name: str(tmp_path / name) for name in settings}}
    environment.pop("PYTEST_CURRENT_TEST", None)
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
             "--IdentityProvider.token=course", "--LabApp.expose_app_in_browser=True", f"--notebook-dir={folder}"],
            env=environment, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{base}/api?token=course", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.5)
        yield base
    finally:
        server.terminate()
        server.wait(timeout=30)


CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .filter(w => w.model.type === 'code' && w.model.sharedModel.getSource().trim())
    .map(w => w.model.toJSON())"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_in_jupyterlab(path, lab):
    """Run All in a real browser; fails on an unmarked error, a cell that did not run, or a request to another host."""
    from playwright.sync_api import sync_playwright

    screenshots = editions.ROOT / "build" / "screenshots"
    screenshots.mkdir(parents=True, exist_ok=True)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]  # fmt: skip
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{lab}/lab/tree/{path.name}?token=course&reset")
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
            timeout=90_000,
        )
        page.wait_for_timeout(1000)
        page.screenshot(path=screenshots / f"{path.stem}_opened.png")
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:restart-run-all') }")
        page.get_by_role("button", name="Confirm Kernel Restart").click(timeout=10_000)
        page.wait_for_timeout(1000)
        page.wait_for_function(f"() => ({CELLS})().every(c => c.execution_count)", timeout=240_000)
        page.wait_for_timeout(1000)
        cells = page.evaluate(CELLS)
        page.screenshot(path=screenshots / f"{path.stem}_run.png")
        browser.close()
    errors = [
        output
        for cell in cells
        for output in cell["outputs"]
        if output["output_type"] == "error" and "raises-exception" not in cell["metadata"].get("tags", [])
    ]
    assert errors == []
    assert len(cells) == len([c for c in cells if c["execution_count"]]) > 10
    assert [url for url in requests if not url.startswith((lab, "data:", "blob:", lab.replace("http", "ws")))] == []
