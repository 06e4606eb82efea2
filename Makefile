# `make help` lists what there is. Two commands do everything: `make lab` and `make test`.

# The first Python in the supported range, 3.11 to 3.13; override with PYTHON=...
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# $(call install,FOLDER,EXTRAS) installs into an environment; if it fails, the end of what pip said is shown, without its routine lines.
define install
@echo "Installing $(2) into $(1): some minutes the first time. What pip says goes into $(1)/install.log"
@$(1)/bin/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e ".[$(2)]" \
  >$(1)/install.log 2>&1 || { grep -vE '^ *($(ROUTINE)) ' $(1)/install.log | tail -n 30; \
  echo "Installing $(2) into $(1) failed; pip says why above, and more in $(1)/install.log. The next make tries again."; exit 1; }
endef
ROUTINE := INFO: pip is looking|Looking in|Obtaining|Processing|Collecting|Downloading|Using cached|Requirement already|Checking|Building|Installing|Preparing|Getting
comma := ,

# $(call environment,FOLDER,EXTRAS) makes an environment, or brings it up to date.
define environment
@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found. Install one, or name it: make PYTHON=/path/to/python"; exit 1; }
$(PYTHON) -m venv $(1)
$(call install,$(1),$(2))
@touch $(1)/.ready
endef

# One thread each: small steps on shared cores are many times faster so, and the same everywhere.
QUIET := OMP_NUM_THREADS=1 TQDM_DISABLE=1
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-sanitize-with tests/notebooks/nbval_sanitize.cfg \
  -n 2 --dist loadscope -p no:cacheprovider

# JupyterLab refuses to run as root unless told so, as in a container.
ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# The instructors' environment, with nbgrader; its folder must be on the PATH, because nbgrader calls alembic by name.
CLASSROOM := .venv-classroom
CLASSROOM_READY := $(CLASSROOM)/.ready

# WSL has a NAME in its environment, the computer's; only one in the command counts.
ifeq ($(origin NAME),environment)
NAME :=
endif

.PHONY: help install lab solutions address test test-unit test-notebooks test-clients test-slow notebooks images experiments bench \
  classroom release students-copy collect grades alike check-the-checks site links lint format clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 27

install: $(READY)  ## make the environment (.venv) from pyproject.toml and constraints.txt

$(READY): pyproject.toml constraints.txt
	$(call environment,$(VENV),lab$(comma)dev)

lab: $(READY)  ## open the first chapter in JupyterLab
	$(BIN)/jupyter lab $(ROOT) notebooks/01_sequences_and_language_models.ipynb

solutions: $(READY)  ## open a chapter with its solutions in JupyterLab: CHAPTER=05
	$(BIN)/python -m tools.notebooks.build $(CHAPTER) --instructor
	$(BIN)/jupyter lab $(ROOT) build/instructor/$(CHAPTER)_*.ipynb

test: test-unit test-notebooks  ## check everything: unit tests, then every notebook in both editions

test-unit: $(READY)
	$(QUIET) $(BIN)/python -m pytest -q -n 2

test-notebooks: $(READY)
	$(QUIET) $(BIN)/python -m tools.notebooks.build --instructor
	$(QUIET) $(BIN)/python -m pytest -q $(NBVAL) notebooks/*.ipynb build/instructor/*.ipynb

test-clients: $(READY)  ## the notebooks in Colab's conditions; choose with PYTHON=python3.13 TORCH=2.11.0
	COLAB_PYTHON=$(PYTHON) COLAB_TORCH=$(TORCH) $(QUIET) $(BIN)/python -m pytest -q -m slow -n 2 tests/clients/test_clients_colab.py

test-slow: $(READY) $(CLASSROOM_READY)  ## the slow suites: JupyterLab in a real browser, Colab's conditions, nbgrader, the site
	$(call install,$(VENV),slow$(comma)site)
	$(QUIET) $(BIN)/python -m pytest -q -m slow -n 2 --dist loadgroup --durations=40 tests

classroom: $(CLASSROOM_READY)  ## make the instructors' environment (.venv-classroom), with nbgrader

$(CLASSROOM_READY): pyproject.toml constraints.txt
	$(call environment,$(CLASSROOM),classroom)

release: $(CLASSROOM_READY)  ## make an assignment: CHAPTERS="05 07" or EXERCISES="5.1 7.2", NAME=homework1; see INSTRUCTORS.md
	@$(CLASSROOM)/bin/python -m classroom.release --chapters "$(CHAPTERS)" --exercises "$(EXERCISES)" --points "$(POINTS)" \
	  --due "$(DUE)" $(if $(NAME),--name "$(NAME)") $(if $(COURSE),--course "$(COURSE)") $(if $(FORCE),--force)

# FROM is one path, with spaces or not, or several without.
students-copy:  ## write build/students-copy.zip: the course without solutions, tests and grading
	@mkdir -p build
	git archive --format=zip --prefix=sequence-models/ -o build/students-copy.zip HEAD README.md LICENSE CITATION.cff pyproject.toml \
	  constraints.txt environment.yml Makefile course_lib results images ':(glob)notebooks/*.ipynb'

collect: $(CLASSROOM_READY)  ## take in what students handed in: FROM=downloads/submissions.zip, NAME=homework1
	@if [ -e "$$FROM" ]; then IFS=; set -f; fi; $(CLASSROOM)/bin/python -m classroom.collect $(if $(NAME),--name "$(NAME)") $(if $(COURSE),--course "$(COURSE)") $$FROM

grades: $(CLASSROOM_READY)  ## write the marks, for you, Canvas and Moodle: NAME=homework1, CANVAS=export.csv, MOODLE=worksheet.csv
	@$(CLASSROOM)/bin/python -m classroom.marks $(if $(NAME),--name "$(NAME)") $(if $(COURSE),--course "$(COURSE)") \
	  $(if $(CANVAS),--canvas "$(CANVAS)") $(if $(MOODLE),--moodle "$(MOODLE)") $(if $(COLUMN),--column "$(COLUMN)") \
	  $(if $(UNREAD_AS_ZERO),--unread-as-zero)

alike: $(CLASSROOM_READY)  ## list the answers that are alike: NAME=homework1
	@$(CLASSROOM)/bin/python -m classroom.alike $(if $(NAME),--name "$(NAME)") $(if $(COURSE),--course "$(COURSE)")

check-the-checks: $(READY)  ## try planted wrong answers and mutants of the solutions on every check
	OMP_NUM_THREADS=1 $(BIN)/python -m classroom.mutants

site: $(READY)  ## build the site from the stored outputs into build/site
	$(call install,$(VENV),site)
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.build

links: $(READY)  ## look for internal links that lead nowhere
	$(BIN)/python -m tools.links

notebooks: $(READY)  ## build and execute the notebooks whose source, library or ledger changed
	$(QUIET) $(BIN)/python -m tools.notebooks.build $(CHAPTERS)
	$(BIN)/python -m tools.readme
	$(BIN)/python -m classroom.exercises

address: $(READY)  ## set the repository's address everywhere, executing nothing: URL=https://github.com/ann/course
	$(BIN)/python -m tools.address "$(URL)"

images: $(READY)  ## draw the diagrams into images/
	$(BIN)/python -m tools.images

experiments: $(READY)  ## list the recorded runs, or make one: make experiments NAME=imdb-bow SEEDS=3
	$(BIN)/python -m course_lib.experiments $(NAME) $(if $(SEEDS),--seeds $(SEEDS))

bench: $(READY)  ## measure speed as ratios in one run, against the goals
	$(BIN)/python -m benchmarks.bench

lint: $(READY)  ## look for mistakes in code and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check course_lib classroom tools docs benchmarks tests conftest.py
	$(BIN)/codespell course_lib classroom tools tests notebooks/source docs benchmarks *.md

format: $(READY)  ## put the code into its standard form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format course_lib classroom tools docs benchmarks tests conftest.py

clean:  ## remove what can be made again
	rm -rf build dist $(VENV) $(CLASSROOM) .pytest_cache .ruff_cache
