# Everyday commands; `make` alone lists them. CMake does the work, see
# CMakePresets.json for what a preset means.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
# The list of what was installed, below PREFIX.
INSTALLED = share/doc/softhca/installed-files
CMAKE_BUILD = cmake --build --preset

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

deps: ## install the Debian packages that are missing
	@scripts/deps

build: ## build/bin/softhca and its libraries, ready to use from here
	@scripts/deps --check build
	@cmake --preset release >/dev/null
	@$(CMAKE_BUILD) release -j $(JOBS) --target product
	@echo "ready: build/bin/softhca run -- PROGRAM"

build-tests: deps ## and the programs of the tests and measurements
	@cmake --preset release >/dev/null
	@$(CMAKE_BUILD) release -j $(JOBS)

check: deps ## the fast tests: unit and simulation (T=sim_random SEED=7 RUNS=1000, T=tests/clients/test_x.py::name)
	@scripts/check "$(T)" "$(SEED)" "$(RUNS)"

test: deps ## everything: unit, simulation, ABI, fuzz, sanitizers, real clients
	@scripts/test

test-busy: deps ## the same beside a program that keeps all processors busy
	@stress-ng --quiet --cpu 8 --timeout 40m & busy=$$!; test=; \
	trap 'kill $$busy' EXIT; trap 'kill $$test || exit 1' INT TERM HUP; \
	busy() { kill -0 $$busy || { echo "stress-ng does not run" >&2; false; }; }; \
	sleep 1; busy || exit 1; \
	scripts/test & test=$$!; wait $$test; rc=$$?; \
	if kill -0 $$test 2>/dev/null; then wait $$test; rc=$$?; fi; \
	busy || rc=1; exit $$rc

test-full: deps ## the same with the whole matrix of real clients (about an hour)
	@scripts/deps full
	@tests/packages/bare.py || echo "without it, what runs there is skipped" >&2
	@scripts/test --full

test-arm64: deps ## cross-builds for arm64 by gcc and clang; tests under qemu-user, and in an emulated machine
	@scripts/deps arm64
	@scripts/test --stage arm64 --full

test-pyverbs: deps build ## rdma-core's own tests of verbs (pyverbs)
	@tests/pyverbs/run $(PYVERBS)

test-peer: build-tests ## against the kernel's RDMA drivers (rxe, siw) in guests; writes docs/INTEROP.md
	@tests/peer/run --build-guest $(PEER)

test-storage: build-tests ## NVMe over Fabrics and iSER with the kernel's initiators and targets, in a guest; docs/STORAGE.md
	@scripts/deps storage
	@tests/storage/run --build-guest $(STORAGE)

test-page: build ## softhca trace --html in headless Chromium, which this installs
	@scripts/deps page
	@/usr/bin/python3 -m pytest -q --no-header -o cache_dir=build/pytest-cache tests/page

soak: build-tests ## mixed operations while 1 % is lost, memory watched (DURATION=600)
	@/usr/bin/python3 tests/clients/soak.py $(or $(DURATION),600)

demo: ## watch unmodified RDMA programs run on this machine
	@scripts/deps demo
	@scripts/demo

demo-migrate: build ## watch a running program move to another host, while its peer writes to it (root, CRIU)
	@scripts/deps demo
	@scripts/demo-migrate

bench: build-tests ## latency and bandwidth beside UCX, UDP, TCP and memcpy
	@/usr/bin/python3 tests/bench/bench.py $(BENCH)

bench-peer: build-tests ## softhca beside the kernel's rxe and siw, TCP and UDP in one guest
	@tests/peer/bench --build-guest $(BENCH_PEER)

deb: ## Debian packages of this tree, in build/deb (ARCH=arm64, with its libraries)
	@$(if $(ARCH),,scripts/deps --check packages)
	@ARCH=$(ARCH) scripts/deb

tarball: ## a folder that runs from any path of any distribution, in build/tarball (ARCH=arm64)
	@scripts/deps --check packages
	@$(if $(ARCH),scripts/deps --check arm64)
	@ARCH=$(ARCH) scripts/tarball

test-packages: ## build, install, use and remove both in bare Debian 12 and 13 (root)
	@scripts/deps test-packages
	@tests/packages/run

test-headers: deps ## all of the tree, built against the packages of other distributions
	@tests/headers/run $(HEADERS)

test-containers: ## softhca in containers: podman, pods, Kubernetes' manifest, CDI (root)
	@scripts/deps containers
	@tests/containers/run

test-migrate: build-tests ## programs moved by CRIU, in place, between network namespaces and in a guest (root; 7 minutes)
	@scripts/deps migrate
	@tests/migrate/run $(MIGRATE)

asan: deps ## unit, simulation and fuzz tests under ASan and UBSan
	@scripts/test --stage asan

lint: deps ## clang-tidy and cppcheck on src, with the checks that find bugs; clang-format
	@scripts/lint

tsan: deps ## the same under TSan
	@scripts/test --stage tsan

install: ## into PREFIX (/usr/local), with man page, completion and pkg-config
	@scripts/deps --check build
	@cmake --preset release -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@$(CMAKE_BUILD) release -j $(JOBS) --target product
	@cmake --install build
	@cp build/install_manifest.txt "$(DESTDIR)$(PREFIX)/$(INSTALLED)"

uninstall: ## what make install has put there, of the same PREFIX
	@scripts/uninstall "$(DESTDIR)" "$(PREFIX)/$(INSTALLED)"

clean: ## remove what was built and measured
	rm -rf build bench-results

.PHONY: help deps build build-tests check test test-busy test-full test-page test-arm64 test-headers test-pyverbs test-peer test-storage soak demo demo-migrate deb tarball test-packages test-containers test-migrate bench bench-peer asan lint tsan install uninstall clean
