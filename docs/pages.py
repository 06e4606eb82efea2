"""The pages of the site that are made, as Markdown: the map of chapters and library, API pages, the ledger's pages.

Everything here is a function from the sources, the library or a record of the ledger to
text (and, for curves, to picture files); `docs/build.py` writes the text where Sphinx reads it.
"""

import ast
import inspect
import itertools
import json
import math
import re

import course_lib
from course_lib import experiments
from course_lib.notebook import ledger, plots
from course_lib.notebook.names import column_name, row_name
from tools import readme
from tools.notebooks import editions

# Of a history's numbers: what stands on the x axis, the first that is there, and what is no result.
STEPS = ("step", "epoch", "piece")
NOT_DRAWN = {*STEPS, "seconds", "tokens", "updates", "teacher_forcing"}
LONGEST = 40  # rows of a table of lists


def table(headers, rows):
    r"""Return a Markdown table.

    >>> print(table(["a", "b"], [["1 | 2", 3]]))
    | a | b |
    |---|---|
    | 1 \| 2 | 3 |
    """
    lines = [headers, ["---"] * len(headers), *rows]
    text = [" | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) for line in lines]
    text[1] = "|".join(["---"] * len(headers))
    return "\n".join(f"|{line}|" if i == 1 else f"| {line} |" for i, line in enumerate(text))


# --- chapters and library ---------------------------------------------------------


def reading_order():
    """Return the names of the library's modules and folders in the order of its docstring: imports point upwards."""
    listed = course_lib.__doc__.split("Letters for shapes")[0].split("those before it:")[1]
    return re.findall(r"`(\w+)`", listed)


def not_taught():
    """Return the names of the folders that are there for something else than teaching."""
    return re.findall(r"`(\w+)`", course_lib.__doc__.split("there are\n")[1].split("Each module")[0])


def inner_modules(module):
    """Return the dotted names of the modules in a folder of the library; none if it is a file.

    >>> inner_modules("cost"), inner_modules("rnn")
    (['cost.formulas', 'cost.measure'], [])
    """
    paths = editions.ROOT.joinpath("course_lib", module).glob("[a-z]*")
    return sorted(f"{module}.{path.stem}" for path in paths if path.suffix == ".py" or (path / "__init__.py").exists())


def chapters():
    """Return {number: (title, name of the file)} of the chapters that are there."""
    files = {path.stem[:2]: path.stem for path in editions.sources()}
    return {number: (title, files[number]) for number, title, _ in readme.MAP if number in files}


def chapter_link(number, folder=".."):
    """Return a link to a chapter from a page in a folder of the site."""
    title, name = chapters()[number]
    return f"[{number} {title}]({folder}/notebooks/{name}.ipynb)"


def names_used(code):
    r"""Return what code takes from the library: {module: names, sorted}, modules in the reading order.

    >>> names_used("from course_lib.datasets import synthetic\nfrom course_lib.rnn import RNN\nsynthetic.copy_task(1)")
    {'datasets.synthetic': ['copy_task'], 'rnn': ['RNN']}
    """
    tree = ast.parse("\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in code.splitlines()))
    modules, used = {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "course_lib":
            for alias in node.names:
                dotted = f"{node.module}.{alias.name}".removeprefix("course_lib.")
                if _is_module(dotted):
                    modules[alias.asname or alias.name] = dotted
                    used.setdefault(dotted, set())
                else:
                    used.setdefault(dotted.rpartition(".")[0], set()).add(alias.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            used[modules[node.value.id]].add(node.attr)
    order = reading_order()
    return {name: sorted(used[name]) for name in sorted(used, key=lambda n: (order.index(n.split(".")[0]), n))}


def _is_module(dotted):
    base = editions.ROOT.joinpath("course_lib", *dotted.split("."))
    return base.with_suffix(".py").exists() or base.is_dir()


def uses():
    """Return {chapter's number: what `names_used` finds in its source}."""
    return {path.stem[:2]: names_used(path.read_text(encoding="utf8")) for path in editions.sources()}


def map_page(used):
    """Return the page that leads from chapters to the library and back.

    Args:
        used: as `uses` gives it.

    Returns:
        str.
    """
    there = [[chapter_link(number, "."), _names(modules)] for number, modules in used.items()]
    modules = [name for module in reading_order() for name in (module, *inner_modules(module))]
    back = [[_module_link(module), _summary(module), _readers(module, used, ".")] for module in modules]
    return "\n\n".join(
        [
            "# Chapters and library",
            "Both ways: what each chapter takes from `course_lib`, and who uses each module. Made from the imports in "
            "the chapters' sources. Names lead to their description.",
            "## From a chapter to the library",
            table(["chapter", "modules and names"], there),
            "## From the library to the chapters",
            "In reading order: each module imports only from those above it.",
            table(["module", "what it is", "chapters"], back),
            "",
        ]
    )


def _names(modules):
    """Return the modules of one chapter with the names used, as links."""
    parts = []
    for module, names in modules.items():
        links = ", ".join(f"{{py:obj}}`{name} <course_lib.{module}.{name}>`" for name in names)
        parts.append(f"**{_module_link(module)}** {links}".strip())
    return "<br>".join(parts)


def _module_link(module):
    return f"[{module}](library/{module.split('.')[0]}.md)"


def _summary(module):
    """Return the first sentence of a module's docstring."""
    path = editions.ROOT.joinpath("course_lib", *module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))).split("\n\n")[0].replace("\n", " ")


def _readers(module, used, folder):
    """Return links to the chapters that use a module, or anything in a folder."""
    chosen = [n for n, modules in used.items() if any(f"{name}.".startswith(f"{module}.") for name in modules)]
    names = chapters()
    return ", ".join(f"[{number}]({folder}/notebooks/{names[number][1]}.ipynb)" for number in chosen)


# --- the library ------------------------------------------------------------------


def api_page(module, used):
    """Return a module's page: the chapters that use it, and what its docstrings say.

    Args:
        module: name of a module of `course_lib`.
        used: as `uses` gives it.

    Returns:
        str.
    """
    readers = _readers(module, used, "..")
    parts = [f"# {module}", f"Used in chapters {readers}." if readers else "", _automodule(module)]
    for name in inner_modules(module):
        parts += [f"## {name}", _automodule(name)]
    return "\n\n".join([*parts, ""])


def _automodule(name):
    return f"```{{eval-rst}}\n.. automodule:: course_lib.{name}\n   :members:\n```"


def api_index(used):
    """Return the page that lists the library's modules: what is taught, then the folders that are not."""
    rows = {m: [f"[{m}]({m}.md)", _summary(m), _readers(m, used, "..")] for m in reading_order()}
    taught = [name for name in rows if name not in not_taught()]
    intro = (
        "`course_lib` holds what the chapters import: one module a concept; each imports only from those above it. "
        "Shapes are written with the same letters everywhere: B batch, T query or target length, S key or source "
        "length, D width, H heads, K width of a head, F feed-forward width, V vocabulary, N layers. Tensors are "
        "batch first; masks are boolean, and True = may attend."
    )
    headers = ["module", "what it is", "chapters"]
    parts = [
        "# The library",
        intro,
        table(headers, [rows[name] for name in taught]),
        "Beside them stand folders that no chapter teaches:",
        table(headers, [rows[name] for name in not_taught()]),
        toctree([*taught, *not_taught()]),
    ]
    return "\n\n".join(parts) + "\n"


def toctree(pages, caption=""):
    """Return a hidden table of contents that puts pages into the sidebar."""
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"```{{toctree}}\n{options}\n" + "\n".join(pages) + "\n```"


# --- the ledger -------------------------------------------------------------------


def drawn_in(name, sources):
    """Return the numbers of the chapters whose source names an experiment.

    >>> drawn_in("imdb-bow", {"02": 'ledger.table("imdb-bow")', "05": "imdb-bow"})
    ['02']
    """
    return [number for number, text in sources.items() if f'"{name}"' in text]


def experiment_page(record, numbers, pictures):
    """Return the page of one experiment.

    Args:
        record: as `ledger.load` gives it.
        numbers: the chapters that draw it.
        pictures: as `draw_curves` gives them.

    Returns:
        str.
    """
    name = record["experiment"]
    results = bench_table(record) if name == "bench" else result_tables(name, record)
    parts = [
        f"# {name}",
        record["summary"],
        _description(name),
        "To record it again:",
        f"```console\n$ {record['command']}\n```",
        facts(record, numbers),
        "## Results",
        results,
    ]
    shown = [f"![{alt}]({file})\n\n*{caption}*" for file, alt, caption in pictures]
    parts[2:2] = [part for part, (file, _, _) in zip(shown, pictures, strict=True) if file.endswith("-results.svg")]
    curves = [part for part, (file, _, _) in zip(shown, pictures, strict=True) if not file.endswith("-results.svg")]
    if curves:
        parts += ["## Curves", "One line a seed.", *curves]
    parts += longer_results(record)
    parts += ["## Settings", table(["setting", "value"], [[f"`{k}`", _value(v)] for k, v in record["config"].items()])]
    parts += [f"The whole record: {{download}}`{name}.json <../records/{name}.json>`.", ""]
    return "\n\n".join(part for part in parts if part != "") + "\n"


def _description(name):
    """Return the docstring of an experiment's function and where it stands."""
    if name not in experiments.known():
        return ""
    function = experiments.find(name).function
    place = f"{function.__module__}.{function.__name__}"
    words = inspect.cleandoc(function.__doc__ or "")
    return f"{words}\n\nThe code: {{py:obj}}`{place}`."


def facts(record, numbers):
    """Return the list of where and how an experiment was recorded."""
    runs = record["runs"]
    seconds = [run["seconds"] for run in runs]
    peaks = [run["peak_mb"] for run in runs if run.get("peak_mb")]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        f"**Drawn in:** {'; '.join(map(chapter_link, numbers)) or 'no chapter'}",
        f"**Seeds:** {', '.join(str(run['seed']) for run in runs)}",
        f"**Time:** {duration(sum(seconds) / len(seconds))} a seed",
        f"**Device:** {record['device']}, {_count(record['threads'], 'thread')}",
        f"**Memory:** {f'{max(peaks):,.0f} MB at most' if peaks else 'not measured'}",
        f"**Versions:** {versions}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def duration(seconds):
    """Return a length of time as one reads it.

    >>> duration(8.2), duration(1333), duration(9000)
    ('8 s', '22 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7000 else f"{seconds / 3600:.1f} h"


def _count(number, word):
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _value(value):
    """Return a setting as text."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else f"{value}"
    return f"`{text}`" if text else ""


def result_tables(name, record, folder=None):
    """Return a table for each group of variants that have the same numbers.

    Args:
        name: the experiment.
        record: its record.
        folder: of the ledger; None: the course's.

    Returns:
        str: mean over the seeds, with the least and the greatest where they differ.
    """
    groups = {}
    for variant in record["runs"][0]["results"]:
        metrics = tuple(_numbers(record, variant))
        if metrics:
            groups.setdefault(metrics, []).append(variant)
    tables = [ledger.table(name, list(m), variants, folder=folder) for m, variants in groups.items()]
    if not tables:
        return "This experiment has no single numbers; its lists follow."
    tables = [transposed(text) if len(m) > 6 else text for m, text in zip(groups, tables, strict=True)]
    note = "The mean over the seeds, with the least and the greatest where they differ."
    if len(tables) > 1:
        note += " Variants of which the same numbers were recorded share a table."
    return "\n\n".join([note, *tables])


def _numbers(record, variant):
    """Return the metrics of a variant that are one number in every run."""
    rows = [run["results"][variant] for run in record["runs"]]
    return [key for key in rows[0] if all(isinstance(row.get(key), int | float) for row in rows)]


def transposed(markdown):
    r"""Return a Markdown table with rows and columns changed, for few variants with many numbers.

    >>> print(transposed("| | a | b |\n|---|---:|---:|\n| x | 1 | 2 |"))
    | | x |
    |---|---:|
    | a | 1 |
    | b | 2 |
    """
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.split("\n")]
    columns = list(zip(rows[0], *rows[2:], strict=True))
    lines = [columns[0], ["---"] + ["---:"] * (len(columns[0]) - 1), *columns[1:]]
    text = ["|" + "|".join(line) + "|" if i == 1 else "| " + " | ".join(line) + " |" for i, line in enumerate(lines)]
    return "\n".join(text).replace("|  |", "| |", 1)


def bench_table(record):
    """Return the benchmark's table: ratios against their goals."""
    rows = []
    for name, row in record["runs"][0]["results"].items():
        spread = f" ({row['low']:.3g} to {row['high']:.3g})" if row.get("low") is not None else ""
        met = {True: "yes", False: "**no**", None: ""}[row.get("passed")]
        rows.append(
            [name, f"{row['measured']:.3g}{spread}", goal(row).replace(" ", "\u00a0"), met, row.get("note", "")]
        )
    return table(["measured", "median (quartiles)", "goal", "met", "how"], rows)


def goal(row):
    """Return the goal of a row of the benchmark in words.

    >>> goal({"measured": 3.1, "goal": 2.0, "passed": True}), goal({"measured": 3.1})
    ('at least 2', '')
    """
    if row.get("goal") is None:
        return ""
    at_most = row["passed"] == (row["measured"] <= row["goal"])
    return f"{'at most' if at_most else 'at least'} {row['goal']:g}"


def longer_results(record):
    """Return the lists of numbers of an experiment, the mean over the seeds, folded away."""
    parts = []
    for variant in record["runs"][0]["results"]:
        columns = _lists(record, variant)
        for length in sorted({len(column) for column in columns.values()}):
            of_length = {key: column for key, column in columns.items() if len(column) == length}
            rows = [[f"{value:.4g}" for value in row] for row in zip(*of_length.values(), strict=True)]
            parts.append(f"<details><summary>{variant}: {', '.join(of_length)}</summary>")
            parts.append(table(list(of_length), rows))
            parts.append("</details>")
    return ["## Lists", "Numbers by step, length or distance; the mean over the seeds.", *parts] if parts else []


def _lists(record, variant):
    """Return {metric: mean over the seeds} of the metrics that are lists of numbers of one length."""
    rows = [run["results"][variant] for run in record["runs"]]
    columns = {}
    for key in rows[0]:
        values = [row.get(key) for row in rows]
        if all(_is_short_list(value) and len(value) == len(values[0]) for value in values):
            columns[key] = [sum(column) / len(column) for column in zip(*values, strict=True)]
    return columns


def _is_short_list(value):
    return (
        isinstance(value, list)
        and 0 < len(value) <= LONGEST
        and all(isinstance(number, int | float) for number in value)
    )


def curve_groups(record):
    """Return lists of variants whose histories have the same numbers, at most six a list: one figure each."""
    alike = {}
    for variant, history in record["runs"][0].get("history", {}).items():
        if history:
            alike.setdefault(tuple(sorted(history[0])), []).append(variant)
    groups = []
    for variants in alike.values():
        size = len(variants) if len(variants) <= 6 else next((n for n in (4, 5, 6) if len(variants) % n == 0), 6)
        groups += [variants[start : start + size] for start in range(0, len(variants), size)]
    return groups


# Of an experiment's numbers the one that its figure shows: the first of these that is there, else the first of all.
HEADLINES = (
    "accuracy",
    "bleu",
    "exact",
    "test_nats",
    "nats",
    "perplexity",
    "mse",
    "mae",
    "loss",
    "valid_accuracy",
    "valid_loss",
)


def draw_results(record, folder):
    """Draw what an experiment found, as one picture that suits its numbers: [(file, alt, caption)] or []."""
    import matplotlib.pyplot as plt

    singles, lists = _main_numbers(record), {v: _lists(record, v) for v in record["runs"][0]["results"]}
    matrices = _matrices(record)
    if record["experiment"] == "bench":
        ax, what = _draw_goals(record["runs"][0]["results"])
    elif len(singles) > 1:
        ax, what = _draw_dots(**singles)
    elif matrices:
        ax, what = _draw_matrices(matrices)
    elif any(lists.values()):
        ax, what = _draw_lists(lists)
    else:
        return []
    if ax is None:
        return []
    file = f"{record['experiment']}-results.svg"
    ax.figure.savefig(folder / file, metadata={"Date": None})
    plt.close(ax.figure)
    return [(file, f"Results of {record['experiment']}: {what}", what[0].upper() + what[1:])]


def _draw_goals(results):
    """Draw how far each row of the benchmark is from its goal."""
    rows = {name: row for name, row in results.items() if row.get("goal") and row.get("measured")}
    ax = plots.axes(8.0, 0.9 + 0.27 * len(rows))
    for place, row in enumerate(rows.values()):
        ahead = row["measured"] / row["goal"]
        ahead = 1 / ahead if goal(row).startswith("at most") else ahead
        ax.plot(min(ahead, 8), place, "o", color=plots.COLORS["attention" if row["passed"] else "gradient"])
    ax.axvline(1, color="black", linewidth=1)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_yticks(range(len(rows)), list(rows), fontsize=8)
    ax.invert_yaxis()
    ax.set_xlabel("times better than the goal (8: or more)")
    return ax, "times better than the goal; a dot left of 1 misses it."


def _draw_dots(metric, **rows):
    """Draw an experiment's main number, a dot for each seed."""
    ax = plots.axes(height=0.9 + 0.27 * len(rows))
    for place, values in enumerate(rows.values()):
        ax.plot(values, [place] * len(values), "o", color=plots.COLORS["attention"], alpha=0.6)
    ax.set_yticks(range(len(rows)), [row_name(name) for name in rows])
    ax.invert_yaxis()
    ax.set_xlabel(column_name(metric))
    return ax, f"{column_name(metric)}, a dot for each seed."


def _draw_lists(lists):
    """Draw the first two lists of one length against each other, a line for each variant."""
    x, y = _two_of_a_length(lists)
    if x is None:
        return None, ""
    same = {v: c for v, c in lists.items() if len(c.get(x, ())) == len(c.get(y, [None]))}
    ax = plots.axes()
    for color, (variant, columns) in zip(plots.CYCLE, same.items(), strict=False):
        ax.plot(columns[x], columns[y], "o-", label=variant, color=color)
    ax.set(xlabel=column_name(x), ylabel=column_name(y))
    return plots.direct_labels(ax), f"{column_name(y)} by {column_name(x)}; the mean over the seeds."


def _draw_matrices(matrices):
    """Draw a matrix for each variant, as colours of the logarithm: gradients span many powers of ten."""
    (metric,) = {metric for metric, _ in matrices.values()}
    panels = plots.grid(len(matrices), 1, width=7.0, height=0.5 + 1.1 * len(matrices))
    logs = {v: [[math.log10(x) for x in row] for row in matrix] for v, (_, matrix) in matrices.items()}
    least = min(min(map(min, rows)) for rows in logs.values())
    most = max(max(map(max, rows)) for rows in logs.values())
    for ax, (variant, rows) in zip(panels.flat, logs.items(), strict=True):
        image = ax.imshow(rows, aspect="auto", cmap="Blues", vmin=least, vmax=most, origin="lower")
        ax.set_title(variant, fontsize=9, loc="left")
        ax.set(xticks=[], yticks=[0, len(rows) - 1], yticklabels=[1, len(rows)], ylabel="layer")
        ax.grid(False)
    ax.set_xlabel("time step, the first at the left")
    ax.figure.colorbar(image, ax=list(panels.flat), label=f"power of ten, {column_name(metric)}")
    return ax, f"{column_name(metric)} by layer and time step, as powers of ten; the first seed."


def _matrices(record):
    """Return {variant: (metric, matrix)} of the first run's variants that hold one matrix of positive numbers."""
    found = {}
    for variant, row in record["runs"][0]["results"].items():
        for metric, value in row.items():
            if isinstance(value, list) and value and isinstance(value[0], list) and min(map(min, value)) > 0:
                found[variant] = metric, value
    return found


def _two_of_a_length(lists):
    """Return the names of the first two lists of a variant that have one length: an axis and what lies along it."""
    for columns in lists.values():
        for x, y in itertools.combinations(columns, 2):
            if len(columns[x]) == len(columns[y]):
                return x, y
    return None, None


def _main_numbers(record):
    """Return {variant: its main number for each seed}, and which number that is under "metric"; or {}."""
    results = record["runs"][0]["results"]
    numbers = {variant: _numbers(record, variant) for variant in results}
    keys = [key for of_variant in numbers.values() for key in of_variant]
    shared = [key for key in keys if keys.count(key) > 1]
    metric = next((key for key in HEADLINES if key in shared), shared[0] if shared else None)
    rows = {v: [run["results"][v][metric] for run in record["runs"]] for v, keys in numbers.items() if metric in keys}
    return {"metric": metric} | rows if len(rows) > 1 else {}


def draw_curves(record, folder):
    """Draw an experiment's history into files, one for each group of variants.

    Args:
        record: as `ledger.load` gives it.
        folder: Path of the folder to write to.

    Returns:
        list of (file name, alt text, caption).
    """
    import matplotlib.pyplot as plt

    pictures = []
    for number, variants in enumerate(curve_groups(record), start=1):
        metrics = drawn_metrics(record, variants)
        figure = _figure(record, variants, metrics)
        file = f"{record['experiment']}-{number}.svg"
        figure.savefig(folder / file, metadata={"Date": None})
        plt.close(figure)
        what = f"{', '.join(map(_words, metrics))} of {'; '.join(variants)}"
        pictures.append((file, f"Curves by {_x(record, variants)}: {what}.", f"By {_x(record, variants)}: {what}."))
    return pictures


def drawn_metrics(record, variants):
    """Return the numbers of a history that are results, in a fixed order; a list, such as one of heads, is none."""
    first = record["runs"][0]["history"][variants[0]][0]
    return sorted({metric for metric, value in first.items() if not isinstance(value, list)} - NOT_DRAWN)


def _x(record, variants):
    return next((key for key in STEPS if key in record["runs"][0]["history"][variants[0]][0]), "record")


def _figure(record, variants, metrics):
    """Draw a panel for each metric, two in a row, with one legend below."""
    columns = min(2, len(metrics))
    rows = -(-len(metrics) // columns)
    panels = plots.grid(rows, columns, width=7.0, height=2.5 * rows + 0.3 * len(variants))
    for ax, metric in zip(panels.flat, metrics, strict=False):
        _panel(ax, record, variants, metric)
    for ax in panels.flat[len(metrics) :]:
        ax.remove()
    figure = panels[0, 0].figure
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower left", ncols=1 if columns == 1 else 2)
    return figure


def _panel(ax, record, variants, metric):
    """Draw one metric: a colour for each variant, a line for each seed."""
    x = _x(record, variants)
    for color, variant in zip(plots.CYCLE, variants, strict=False):
        for number, run in enumerate(record["runs"]):
            history = [point for point in run["history"][variant] if point.get(metric) is not None]
            steps = [point.get(x, i) for i, point in enumerate(history)]
            label = None if number else variant
            ax.plot(steps, [point[metric] for point in history], color=color, label=label, linewidth=1.3)
    ax.set(xlabel=_words(x), ylabel=_words(metric))
    low, high = ax.dataLim.intervaly
    if low > 0 and high / low > 100:
        ax.set_yscale("log")


def _words(key):
    return key.replace("_", " ")


def experiments_page(records, sources):
    """Return the page that lists the ledger's experiments.

    Args:
        records: {name: record}.
        sources: {chapter's number: text of its source}.

    Returns:
        str.
    """
    rows = []
    for name, record in sorted(records.items(), key=lambda item: (drawn_in(item[0], sources) or ["99"], item[0])):
        numbers = ", ".join(drawn_in(name, sources))
        rows.append([f"[{name}]({name}.md)", record["summary"], len(record["runs"]), numbers])
    intro = (
        "Every trained number of the course comes from a recorded, seeded run. A page says what was measured, with "
        "which settings, where and how long, and gives the command that records it again. In order of the chapters "
        "that draw them."
    )
    listing = table(["experiment", "what it measured", "seeds", "chapters"], rows)
    return f"# Experiments\n\n{intro}\n\n{listing}\n\n{toctree(sorted(records))}\n"
