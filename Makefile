# `make demo` is the main job, `make test` runs all tests; both share one virtual environment.
PYTHON ?= python3
VENV   ?= .venv
# Of the tests; each has nodes of its own, of 4 GB together, and one thread for arithmetic: more fight for the cores.
PROCESSES ?= 2
COLLECTIONS ?= ../shared/data
BIN     = $(VENV)/bin
STAMP   = $(shell cksum pyproject.toml | tr ' ' -)

.PHONY: demo docs test check test-life test-elasticsearch test-page test-install test-compose test-nginx test-benchmarks test-python test-lowest lock test-replicas test-hosts test-avx2 fuzz chaos sbom audit bench bench-report bench-encode \
	bench-baselines stop clean

demo: $(VENV)/demo-$(STAMP)
	$(BIN)/hybridr demo

# Compiled modules are kept, whatever this shell says: many tests start a Python.
test: $(VENV)/test-$(STAMP) check
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} \
		$(BIN)/python -m pytest --durations=10 --numprocesses=$(PROCESSES) --dist=loadfile --no-loadscope-reorder

# The life of an index on a cluster of yours, in indices of their own: make test-elasticsearch URL=https://…
test-elasticsearch: $(VENV)/test-$(STAMP)
	TRY_URL=$(URL) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n0 tests/server/cluster/test_dialects.py tests/server/test_products.py

# Writers of each side, reindexes, rounds, ways back, removals and kills in any order, against a model: STEPS on each product.
STEPS ?= 5000
test-life: $(VENV)/test-$(STAMP)
	HYBRIDR_LIFE_STEPS=$(STEPS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n0 -s tests/server/test_life.py

# What needs no node, on each Python that hybridr runs on; and on the oldest packages that pyproject.toml allows.
PYTHONS ?= 3.10 3.11 3.12 3.13
PYENV   ?= $(HOME)/.pyenv/versions
QUICK    = tests/test_settings.py tests/test_languages.py tests/files/test_formats.py tests/files/test_local_folders.py \
	tests/cluster/test_record.py tests/cluster/test_connection_hostile.py \
	tests/cli/test_streams.py
WANTED   = pytest pytest-timeout pytest-xdist hypothesis httpx

test-python: $(PYTHONS:%=test-python-%)

test-python-%:
	$$(ls -d $(PYENV)/$*.*/bin/python3 | head -1) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install -q -e ".[parquet,serve]" $(WANTED)
	OMP_NUM_THREADS=1 $(VENV)-$*/bin/python -m pytest -q -n0 $(QUICK)

test-lowest: $(VENV)/test-$(STAMP)
	$(PYTHON) -m venv $(VENV)-lowest
	@mkdir -p build
	$(BIN)/python tests/support/lowest.py > build/lowest.txt
	$(VENV)-lowest/bin/python -m pip install -q -e ".[parquet,serve]" $(WANTED) -c build/lowest.txt
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -q -n0 $(QUICK)

# The versions that are installed here, without those that only this platform has.
lock: $(VENV)/test-$(STAMP)
	$(BIN)/python -m pip freeze --exclude-editable | grep == | grep -viE '^(nvidia|cuda|triton)' | sed 's/+.*//' > requirements-ci.txt

check: $(VENV)/test-$(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The manual as a site in build/site; a link that leads nowhere fails it.
docs: $(VENV)/test-$(STAMP)
	rm -rf build/pages && mkdir -p build/pages/benchmarks
	cp -r docs README.md SECURITY.md build/pages && cp benchmarks/README.md build/pages/benchmarks
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# The page in a real Chromium: apt-get install chromium chromium-driver; PICTURES=FOLDER keeps what it saw.
test-page: $(VENV)/test-$(STAMP)
	$(BIN)/python -m pip install -q "selenium>=4.27"
	$(BIN)/python -m pytest tests/browser -v

# The wheel in an environment of its own, without torch: the demo, adapt and export.
test-install: $(VENV)/test-$(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/install -n0 -v

test-compose: $(VENV)/test-$(STAMP)
	$(BIN)/python -m pytest tests/compose -v

# The lines for nginx in a real one, before both products: apt-get install nginx-light.
test-nginx: $(VENV)/test-$(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/proxies -n0 -v -s

# The studies of benchmarks/, in small.
test-benchmarks: $(VENV)/test-$(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=$(PROCESSES) --dist=loadfile \
		tests/benchmarks tests/server/benchmarks

# Two nodes that are one cluster, replicas on both, and restarts: the same answer from every copy.
test-replicas: $(VENV)/test-$(STAMP)
	HYBRIDR_PAIR=1 $(BIN)/python -m pytest tests/server/search/test_search_replicas.py -v

# Three hosts by network namespaces, each with a Ray: one is cut off, one is killed. Linux, root.
test-hosts: $(VENV)/test-$(STAMP)
	HYBRIDR_HOSTS=1 $(BIN)/python -m pytest tests/server/indexing/test_ray_hosts.py -v

# The arithmetic of a processor with AVX2 and no VNNI, emulated: apt-get install qemu-user. Slow: the files of int8 and of
# backends (EMULATED="tests/encoders/test_quantization.py …_opening.py …_machine.py …_engines.py") took 4.6 minutes of it.
# QEMU 7.2 dies in numpy's own kernels for AVX2, which are switched off: torch and ONNX Runtime keep theirs.
HASWELL = qemu-x86_64 -cpu Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm
EMULATED ?= tests/encoders
test-avx2: $(VENV)/test-$(STAMP)
	@command -v qemu-x86_64 > /dev/null || { echo "qemu-x86_64 is missing: apt-get install qemu-user"; exit 1; }
	EMULATED_CPU=Haswell NPY_DISABLE_CPU_FEATURES=X86_V3 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 \
		$(HASWELL) $(BIN)/python -m pytest -n0 --timeout 1800 -m "not model" $(EMULATED)

# A million generated cases, drawn anew each time; what fails is printed as its smallest form.
fuzz: $(VENV)/test-$(STAMP)
	HYBRIDR_FUZZ_FACTOR=50 $(BIN)/python -m pytest tests/hostile/test_fuzz.py -k parsed --timeout 3600 --durations=5

# The node and its clients are killed, its disk fills once, one document in a hundred is poisoned, mappings grow, and a
# role loses a right in the middle.
MINUTES ?= 20
chaos: $(VENV)/test-$(STAMP)
	HYBRIDR_CHAOS_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/server/test_chaos.py tests/server/test_lost_rights.py -s

# What the package and its extras are made of, as CycloneDX; and the known holes in any of it.
sbom: $(VENV)/test-$(STAMP) $(VENV)/audit/bin/python
	@mkdir -p build
	$(VENV)/audit/bin/cyclonedx-py environment --pyproject pyproject.toml --of JSON -o build/sbom.json $(BIN)/python

audit: $(VENV)/test-$(STAMP) $(VENV)/audit/bin/python
	$(VENV)/audit/bin/pip-audit --strict --skip-editable --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

$(VENV)/audit/bin/python: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/audit
	$@ -m pip install -q cyclonedx-bom pip-audit

# Every open collection that is not finished yet; interrupted, the same command goes on. URL names a cluster,
# without it an embedded node called `bench` is started (and kept: hybridr node stop --name bench).
bench: $(VENV)/test-$(STAMP)
	$(BIN)/python benchmarks/run.py collections $(COLLECTIONS) $(if $(URL),--url $(URL))

bench-report: $(VENV)/test-$(STAMP)
	$(BIN)/python benchmarks/run.py report

# The peers want another transformers than `all` does: sentence-transformers[onnx] needs optimum-onnx, it < 4.58.
bench-encode: $(VENV)/test-$(STAMP) $(VENV)/peers/bin/python
	$(BIN)/python benchmarks/run.py speed encode --beir $(COLLECTIONS)/scifact \
		--beir $(COLLECTIONS)/npl --peers $(VENV)/peers/bin/python

$(VENV)/peers/bin/python: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/peers
	$@ -m pip install -q "sentence-transformers[onnx]" fastembed

# Pyserini needs a Java 21 or newer: JAVA_HOME.
bench-baselines: $(VENV)/test-$(STAMP) $(VENV)/rankers/bin/python
	$(BIN)/python benchmarks/run.py baselines $(COLLECTIONS) --peers $(VENV)/rankers/bin/python

$(VENV)/rankers/bin/python: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/rankers
	$@ -m pip install -q pyserini bm25s PyStemmer rank-bm25 sentence-transformers ranx

stop: $(VENV)/demo-$(STAMP)
	$(BIN)/hybridr node stop

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "hybridr needs Python 3.10 or newer: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps carry the checksum of pyproject.toml: what is installed already is not installed again.
# By uv, in a fifth of the time, unless pip was told of an index of its own, which uv would not ask.
$(VENV)/demo-$(STAMP): WHAT = -e ".[embedded,serve]"
$(VENV)/test-$(STAMP): WHAT = -e ".[all,dev]" $(if $(filter true,$(CI)),-c requirements-ci.txt)
$(VENV)/demo-$(STAMP) $(VENV)/test-$(STAMP): | $(BIN)/python
	{ ! $(BIN)/python -m pip config list | grep -qE 'index|global.find-links' && $(BIN)/python -m pip install -q uv && \
		UV_FIND_LINKS="$(wildcard $(PIP_FIND_LINKS))" $(BIN)/uv pip install -q --python $(BIN)/python $(WHAT); } || \
		$(BIN)/python -m pip install -q $(WHAT)
	@touch $@ $(VENV)/demo-$(STAMP)
