# Two commands do everything on a machine with only python3, make and git: `make demo` and `make test`.
# PYTHON names another interpreter (3.11 to 3.13); each version has its own environment.
PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# How many times the promised seconds a fault's report may take: more than 1 where others use the machine too.
SLACK ?= 1
# Which set of test hosts: several can stand side by side on one machine.
SET ?= 0
# Tests without a cluster wait for their processes half of the time. Those with one have bounds in seconds: one at a time.
TWO := -n 2 --dist loadfile
HOST_PACKAGES := openssh-server openssh-client iptables iproute2
VENV := .venv-$(VERSION)
BIN := $(VENV)/bin

.PHONY: setup demo test test-slow test-slow-ranks test-slow-cluster test-long test-fast test-hosts test-hosts-short test-hosts-up test-hosts-down test-provision host-packages faults faults-sample soak soak-short lint lock bench clean

# All is compiled at once: where PYTHONDONTWRITEBYTECODE is set, each process would compile JAX anew, 5 s of a core.
setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
		|| { echo "Python 3.11 to 3.13 is needed, $(PYTHON) is $(VERSION): make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -qq -j 0 -x '/(tests|testing)/' $(VENV)/lib || true  # some packages have files for older Pythons
	@touch $@

demo: setup
	$(BIN)/spmd-launch demo

test: test-fast
	$(BIN)/python -m pytest -q -m "cluster and not slow and not long and not hosts and not provision" --durations=15

# What takes longer: first layouts of the workloads, damage of every dtype, resumes from any checkpoint, with ranks that the
# tests start themselves; then what has a cluster.
test-slow: test-slow-ranks test-slow-cluster

test-slow-ranks: setup
	$(BIN)/python -m pytest -q -m "slow and not cluster and not long and not hosts and not provision" --durations=15

test-slow-cluster: setup
	$(BIN)/python -m pytest -q -m "slow and cluster and not long and not hosts and not provision" --durations=15

# 10,000 replica checks, more programs and workloads on more layouts, and what other stages of CI show too: CI has no time
# for these.
test-long: setup
	$(BIN)/python -m pytest -q -m "long and not hosts and not provision" --durations=15

# What brings up no cluster.
test-fast: setup
	$(BIN)/python -m pytest -q $(TWO) -m "not slow and not long and not cluster and not hosts and not provision" --durations=15

# On three hosts with an sshd each, made of namespaces on this machine and removed at the end; see tests/hosts/machines.py.
# Containers on them need podman and crun, and their tests are skipped where these are not installed.
test-hosts: setup host-packages
	SLACK=$(SLACK) $(BIN)/python -m pytest -q -m hosts --durations=15

# The same without what takes minutes: for CI.
test-hosts-short: setup host-packages
	SLACK=$(SLACK) $(BIN)/python -m pytest -q -m "hosts and not long" --durations=15

# Leaves three such hosts up and writes lab.yaml, their cluster file, here. SET=1 is another set beside them.
test-hosts-up: setup host-packages
	$(BIN)/python -m tests.hosts --set $(SET) up

test-hosts-down: setup
	$(BIN)/python -m tests.hosts --set $(SET) down

host-packages:
	@[ "$$(id -u)" = 0 ] || { echo "Test hosts need root: sudo make $(MAKECMDGOALS)"; exit 2; }
	@missing=; for program in sshd iptables ip; do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
		[ -z "$$missing" ] && exit; \
		command -v apt-get >/dev/null || { echo "Test hosts need programs that are not installed:$$missing"; exit 2; }; \
		echo "Test hosts need$$missing: installing $(HOST_PACKAGES) with apt-get;"; \
		echo "Debian may then start an sshd on this machine, which the tests do not use"; \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y $(HOST_PACKAGES)

# Clouds that are local servers, with such hosts as their machines; no packet leaves this machine.
test-provision: setup host-packages
	$(BIN)/python -m pytest -q -m provision --durations=15

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	$(BIN)/python benchmarks/launch.py

# Every fault on every workload, many times, and the soak: hours; the tables in docs/reliability.md are its output.
faults: setup
	$(BIN)/python benchmarks/faults.py --times 20 --slack $(SLACK)
	$(MAKE) soak

# Every fault once, each on a workload that the seed chooses, and a few of the rest: minutes.
faults-sample: setup
	$(BIN)/python benchmarks/faults.py --sample 24 --slack $(SLACK)

# A random fault every 30-60 s, for 20 minutes a workload; the result must be the calm run's, bit for bit. Two hours.
soak: setup
	$(BIN)/python benchmarks/soak.py --minutes 20 --slack $(SLACK)

# The same for 3 minutes on one workload; 8 minutes with the calm run beside it.
soak-short: setup
	$(BIN)/python benchmarks/soak.py --minutes 3 --workload transformer --slack $(SLACK)

# Solves again; needs the package registry. All five files are checked in.
lock: setup
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--group dev --extra gcp --extra aws pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --no-annotate --constraint requirements.lock pyproject.toml --output-file cluster/hosts.lock
	for kind in gpu tpu; do \
		$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
			--no-header --no-annotate --constraint requirements.lock --extra $$kind pyproject.toml \
			--output-file cluster/hosts-$$kind.lock || exit; \
	done
	echo uv | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		- --output-file requirements-uv.lock

clean:
	rm -rf .venv-* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
