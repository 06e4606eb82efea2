"""Sphinx's settings for the course's site; `make site` gathers the pages and builds it."""

from pathlib import Path

from docs.docstrings import to_rst

project = "Sequence models"
author = ""
html_title = "Sequence models, from the RNN to GPT"
html_show_copyright = False
html_last_updated_fmt = None

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_static"]

# --- notebooks: as they are stored; nothing is run --------------------------------
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show {type}", "Hide {type}"
nb_render_markdown_format = "myst"  # tables and formulas in outputs, as in JupyterLab
myst_enable_extensions = ["dollarmath", "amsmath", "linkify"]  # linkify: bare addresses are links, as in JupyterLab
myst_linkify_fuzzy_links = False  # but torch.nn is none
myst_dmath_double_inline = True
myst_dmath_allow_labels = False
myst_heading_anchors = 4

# --- API pages: Google's style; see docs/docstrings.py ----------------------
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_use_param = True
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# --- the page: nothing is loaded from another host --------------------------------
mathjax_path = "mathjax/tex-svg-full.js"
html_theme = "sphinx_book_theme"
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_theme_options = {
    "show_toc_level": 2,
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
}
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is
html_favicon = "_static/icon.svg"
highlight_language = "none"


def setup(app):
    """Let docstrings pass through `to_rst` before napoleon reads them."""

    def convert(_app, _what, _name, _object, _options, lines):
        lines[:] = to_rst(lines)

    app.connect("autodoc-process-docstring", convert, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
