# kube-vram. `make help` lists the targets. Every target does the set-up it needs; a second run does only what changed.
#   PRESET=dev|release|asan|tsan   what to build and test (CMakePresets.json)        JOBS=N   parallel jobs
#   TESTS=regex                    only the tests whose names match                  KILLS=N DAEMON_KILLS=N   for stress
SHELL := /bin/bash
.DEFAULT_GOAL := help
PRESET ?= dev
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BUILD := build/$(PRESET)
CTEST := ctest --output-on-failure -j $(JOBS) $(if $(TESTS),-R '$(TESTS)')

# $(call configure,PRESET): first, and when the presets changed; Ninja configures again by itself when a CMake file changes.
configure = [ build/$(1)/build.ninja -nt CMakePresets.json ] || cmake --preset $(1)
SOURCES = git ls-files -z -co --exclude-standard -- '*.cc' '*.h' '*.c'

.PHONY: help
help: ## this list
	@echo "kube-vram: GPU memory as a resource. Targets:"
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r t d; do printf '%-16s %s\n' "$$t" "$$d"; done
	@sed -n '2,3s/^#/ /p' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what build and tests need (Debian packages, headers from PyPI)
	@hack/setup

.PHONY: setup-demo
setup-demo:
	@hack/setup --demo

.PHONY: build
build: setup ## everything of PRESET, in build/PRESET
	@$(call configure,$(PRESET))
	@cmake --build $(BUILD) -j $(JOBS)

.PHONY: test
test: build ## build and run the tests (make test PRESET=asan; TESTS=regex)
	@$(CTEST) --test-dir $(BUILD) $(if $(filter asan,$(PRESET)),-LE once) $(if $(filter tsan,$(PRESET)),-LE 'once|one_thread')

.PHONY: demo
demo: setup-demo ## the story on a simulated 24 GiB card, every figure checked
	@$(call configure,demo)
	@cmake --build build/demo -j $(JOBS)
	@python3 demo/demo.py --prefix build/demo

.PHONY: docs
docs: build ## write docs/commands and docs/errors.md from their tables
	@$(BUILD)/bin/vram generate commands docs/commands
	@$(BUILD)/bin/vram generate errors docs

.PHONY: bench
bench: setup ## the benchmarks, with and without the guard
	@$(call configure,release)
	@cmake --build build/release -j $(JOBS)
	@bench/run --prefix build/release

.PHONY: stress
stress: build ## kill -9 of clients and of the daemon at random points (KILLS=10000 DAEMON_KILLS=1000)
	@tests/stress/run --prefix $(BUILD) --kills $(or $(KILLS),10000) --daemon-kills $(or $(DAEMON_KILLS),1000)

.PHONY: guard-portable
guard-portable: setup ## the guard for glibc 2.28, x86_64 and aarch64, and a check of what it needs
	@$(call configure,$(PRESET))
	@cmake --build $(BUILD) --target guard_portable

.PHONY: lint
lint: build format-check ## clang-format, clang-tidy (cached), shellcheck
	@python3 hack/lint.py --build $(BUILD) --jobs $(JOBS)

.PHONY: format-check
format-check: setup
	@$(SOURCES) | xargs -0 clang-format-19 --dry-run --Werror

.PHONY: fmt
fmt: setup ## format every file
	@$(SOURCES) | xargs -0 clang-format-19 -i

.PHONY: clean
clean: ## remove build/
	@rm -rf build
