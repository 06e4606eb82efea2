"""A JupyterLab server and a Chromium for tests, and what they ask of an opened notebook."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

from tools.notebooks import editions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-color-profile=srgb",
]  # fmt: skip
SCREENSHOTS = editions.ROOT / "build" / "screenshots"
QUIET = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
# Every cell is in the page at once, so that one look sees the whole notebook.
SETTINGS = {
    "settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
    # Without this JupyterLab covers a corner of the page with a question about news.
    "JUPYTER_CONFIG_DIR/labconfig/page_config.json": {
        "disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}
    },
}

CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .filter(w => w.model.type === 'code' && w.model.sharedModel.getSource().trim())
    .map(w => w.model.toJSON())"""


# What a reader could not see or read, each as a function of the page that returns a list of complaints.
# A wide table or formula may be scrolled in its place; the page may not be.
PICTURES = """() => [...document.querySelectorAll('.jp-OutputArea-output img')].map(image => {
    const area = image.closest('.jp-OutputArea-output').getBoundingClientRect(), box = image.getBoundingClientRect()
    const canvas = document.createElement('canvas')
    canvas.width = canvas.height = 1
    const context = canvas.getContext('2d')
    context.drawImage(image, 0, 0)
    const complaint = !image.naturalWidth ? 'does not load'
        : context.getImageData(0, 0, 1, 1).data[3] < 255 ? 'has no background of its own'
        : box.right > area.right + 1 ? 'is wider than its place' : ''
    return complaint && `a picture ${complaint}: ${image.closest('.jp-Cell').innerText.slice(0, 80)}`
}).filter(complaint => complaint)"""

CUT_OFF = """() => [...document.querySelectorAll(
        'body, .jp-WindowedPanel-outer, .jp-OutputArea-output, .jp-MarkdownOutput')]
    .filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
    .filter(e => e.matches('body, .jp-WindowedPanel-outer') || !/auto|scroll/.test(getComputedStyle(e).overflowX))
    .map(e => `${e.scrollWidth} pixels in ${e.clientWidth}: ${e.innerText.slice(0, 80)}`)"""

RAW = """() => [...document.querySelectorAll('.jp-RenderedMarkdown')].flatMap(area => {
    const walker = document.createTreeWalker(area, NodeFilter.SHOW_TEXT), found = []
    while (walker.nextNode())
        if (!walker.currentNode.parentElement.closest('code, pre')) found.push(walker.currentNode.data)
    return found.filter(text => /[*][*]|`|[|] ?---|[$].+[$]/.test(text))
})"""

PALE = """() => {
    const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true})
    const seen = {}
    const numbers = (colour, below) => seen[[...below, colour]] ??= (() => {
        context.clearRect(0, 0, 1, 1)
        for (const layer of [...below, colour]) { context.fillStyle = layer; context.fillRect(0, 0, 1, 1) }
        return [...context.getImageData(0, 0, 1, 1).data]
    })()
    const clear = 'rgba(0, 0, 0, 0)'
    const behind = element => {
        const layers = []
        for (let e = element; e; e = e.parentElement) layers.unshift(getComputedStyle(e).backgroundColor)
        return layers.filter(layer => layer !== clear)
    }
    const luminance = colour => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
        const part = colour[i] / 255
        return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    }, 0)
    const complaints = new Set()
    for (const area of document.querySelectorAll('.jp-OutputArea-output, .jp-MarkdownOutput')) {
        const walker = document.createTreeWalker(area, NodeFilter.SHOW_TEXT)
        const elements = new Set(area.querySelectorAll('mjx-math'))
        while (walker.nextNode()) if (walker.currentNode.data.trim()) elements.add(walker.currentNode.parentElement)
        for (const element of elements) {
            if (!element.checkVisibility() || element.closest(SKIP)) continue
            const style = getComputedStyle(element), below = behind(element)
            const ink = numbers(element.closest('svg') ? style.fill : style.color, below)
            const [light, dark] = [luminance(ink), luminance(numbers(clear, below))].sort((a, b) => b - a)
            const contrast = (light + 0.05) / (dark + 0.05)
            if (contrast < LEAST) complaints.add(
                `contrast ${contrast.toFixed(1)}, ${style.color}, ${element.className || element.localName}: ` +
                element.textContent.slice(0, 60))
        }
    }
    return [...complaints]
}"""
PALE = PALE.replace("LEAST", "4.5")  # the least of WCAG 2, level AA
# The colours of code and of tracebacks are JupyterLab's and IPython's.
TRACEBACK = '[class*="ansi-"], .jp-RenderedText [style], [data-mime-type$="stderr"], [data-mime-type$="error"]'
PALE = PALE.replace("SKIP", f"'.jp-RenderedMarkdown pre, {TRACEBACK}, style, script'")


@contextlib.contextmanager
def server(course):
    """Serve JupyterLab on loopback over a folder, with settings of its own beside it; yield its address."""
    folder = course.parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, content in SETTINGS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content), encoding="utf8")
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    environment = {**os.environ, **QUIET, **{name: str(folder / name) for name in names}}
    environment["JUPYTERLAB_SETTINGS_DIR"] = str(folder / "settings")
    environment.pop("PYTEST_CURRENT_TEST", None)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
             "--IdentityProvider.token=course", "--LabApp.expose_app_in_browser=True",
             f"--notebook-dir={course}"],
            env=environment, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{base}/api?token=course", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.5)
        yield base
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextlib.contextmanager
def chromium():
    """Start a Chromium without a window."""
    from playwright.sync_api import sync_playwright

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def watch(page):
    """Collect what goes wrong on a page and what it asks for."""
    trouble, requests = [], []
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    return trouble, requests


def elsewhere(requests, lab):
    """The requests that went to another host than the server."""
    return [url for url in requests if not url.startswith((lab, "data:", "blob:", lab.replace("http", "ws")))]


def open_notebook(page, lab, name):
    """Open a notebook as its reader would, the file browser closed, and wait until its kernel is there."""
    page.goto(f"{lab}/lab/tree/{name}?token=course&reset", timeout=240_000)
    page.wait_for_function(
        "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=240_000,
    )
    command(page, "application:toggle-left-area")
    theme(page, "Light")


def command(page, name, arguments="{}"):
    """Run a command of JupyterLab and wait for its end."""
    page.evaluate(f"() => window.jupyterapp.commands.execute('{name}', {arguments})")


def theme(page, name):
    """Choose the theme: Light or Dark."""
    command(page, "apputils:change-theme", f"{{theme: 'JupyterLab {name}'}}")
    page.wait_for_function(f"() => document.body.dataset.jpThemeName === 'JupyterLab {name}'")


ENDED = f"""() => {{
    const cells = ({CELLS})(), allowed = c => (c.metadata.tags || []).includes('raises-exception');
    return cells.every(c => c.execution_count)
        || cells.some(c => !allowed(c) && c.outputs.some(o => o.output_type === 'error'));
}}"""


def run_all(page, seconds):
    """Forget the stored outputs, run every cell, and wait for the last or for an error."""
    command(page, "notebook:clear-all-cell-outputs")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    # The command's own promise ends at the first error, also at one that a cell's tag allows.
    page.wait_for_function(ENDED, polling=1000, timeout=1000 * seconds)
    page.wait_for_timeout(1000)


def close(page):
    """End the kernel and close the page."""
    page.evaluate("() => window.jupyterapp?.serviceManager.sessions.shutdownAll()")
    page.close()


def photograph(page, name, width, height=4000):
    """Take the whole notebook in pieces, from top to bottom; return the files."""
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(1000)
    files = []
    box = "document.querySelector('.jp-WindowedPanel-outer')"
    total, seen = page.evaluate(f"[{box}.scrollHeight, {box}.clientHeight]")
    for number in range(-(-total // seen)):
        page.evaluate(f"{box}.scrollTop = {number * seen}")
        page.wait_for_timeout(200)
        files.append(SCREENSHOTS / f"{name}_{number}.jpeg")
        page.screenshot(path=files[-1], quality=85)
    return files
