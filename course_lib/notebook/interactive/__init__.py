"""Five figures that answer to the reader's hand: sliders, buttons, and a sentence that says what is shown now.

Each function returns an `Interactive`, one piece of HTML with its own SVG and script that asks no network and no
kernel for anything: it works in JupyterLab, in Colab and on the site. Where scripts do not run (a notebook that is
not trusted yet, GitHub, print) a still picture stands in its place. Each module has its script beside it, `NAME.html`;
what they share is `base.html`.
"""

from course_lib.notebook.interactive.base import Interactive
from course_lib.notebook.interactive.beam import beam_search
from course_lib.notebook.interactive.decoding import sampling
from course_lib.notebook.interactive.gate import forget_gate
from course_lib.notebook.interactive.rope import rope_angles
from course_lib.notebook.interactive.saturation import root_of_k

__all__ = ["Interactive", "beam_search", "forget_gate", "root_of_k", "rope_angles", "sampling"]
