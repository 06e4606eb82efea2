"""What came back, made ready for nbgrader: a file that nobody can read must not take others with it.

nbgrader calls `take_in` before it grades a student's folder; nbgrader_config.py says so. Nothing that a student
handed in is thrown away: what cannot be read is kept beside, as NAME.ipynb.unreadable.
"""

import shutil
from pathlib import Path

import nbformat

from classroom.grading import restored


def take_in(assignment, student, notebooks):
    """Make a student's folder hold exactly the notebooks of the assignment, as far as they came back.

    A file with another name is taken for the notebook whose exercises it holds. What cannot be read counts as not
    handed in, and what was not handed in is graded as it was handed out: no points, and the others go on.

    Args:
        assignment: its name; the folder's own is used, since nbgrader may say "*".
        student: not used.
        notebooks: list of the files that nbgrader found; it is brought up to date in place.
    """
    folder = Path(notebooks[0]).parent
    released = {path.name: path for path in sorted(Path("release", folder.name).glob("*.ipynb"))}
    came = {path.name: read(path) for path in sorted(folder.glob("*.ipynb"))}
    for name, path in released.items():
        if came.get(name) is None or not fits(came[name], path):
            put_aside(folder / name)
            replace(folder, path, {other: nb for other, nb in came.items() if other not in released})
    notebooks[:] = [str(folder / name) for name in released]


def read(path):
    """Return a notebook, or None if it cannot be read or is a link to some other file."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return nbformat.read(path, as_version=4)
    except Exception:  # broken in whatever way
        return None


def fits(notebook, released):
    """Say whether the answers can be taken out of a notebook at all."""
    try:
        restored(nbformat.read(released, as_version=4), notebook)
    except Exception:  # its metadata may hold anything
        return False
    return True


def put_aside(path):
    """Keep what cannot be read under another name."""
    if path.is_symlink() or path.exists():
        path.rename(path.with_name(f"{path.name}.unreadable"))
        print(f"{path.parent.parent.name}: {path.name} cannot be read; it counts as not handed in")


def replace(folder, released, others):
    """Put a file with another name in the place of a notebook that is missing, or else the released one."""
    wanted = grade_ids(nbformat.read(released, as_version=4))
    names = [
        name for name, notebook in others.items() if notebook and 2 * len(grade_ids(notebook) & wanted) > len(wanted)
    ]
    source = folder / names[0] if names and fits(others[names[0]], released) else released
    shutil.copyfile(source, folder / released.name)
    if source != released:
        print(f"{folder.parent.name}: {source.name} is taken for {released.name}")
    else:
        print(f"{folder.parent.name}: {released.name} is missing; it is graded as it was handed out")


def grade_ids(notebook):
    """Return the ids of a notebook's exercises."""
    marks = [cell.get("metadata", {}).get("nbgrader") for cell in notebook.cells]
    return {str(mark.get("grade_id")) for mark in marks if isinstance(mark, dict)}
