# `make demo` and `make test` each work on a fresh Debian or Ubuntu machine.

CARGO ?= cargo
BIN := target/release/dormouse

PREFIX ?= /usr/local

.PHONY: build install package deps demo check test lint unit fuzz guest bench bench-net bench-hibernate bench-snapshot bench-templates bench-prefetch bench-functions bench-faas lab programs soak book clean

build:
	$(CARGO) build --release -p qvisor -p shim

# Below PREFIX, or DESTDIR and PREFIX: the programs without debug information, manual pages and completions.
install:
	@scripts/package stage
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 target/package/bin/* $(DESTDIR)$(PREFIX)/bin/
	install -m 644 target/package/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 target/package/completion/dormouse $(DESTDIR)$(PREFIX)/share/bash-completion/completions/
	install -m 644 target/package/completion/_dormouse $(DESTDIR)$(PREFIX)/share/zsh/site-functions/
	install -m 644 target/package/completion/dormouse.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/

# target/package: a .deb, one with its debug files, and an .rpm.
package:
	@scripts/package

# Installs what building, testing and the demo need; needs root only if something is missing.
deps:
	@scripts/deps

demo:
	@scripts/deps demo
	@$(MAKE) --no-print-directory build
	@scripts/demo

# Before a commit: what `make test` would most likely find, in a few minutes.
check: deps
	@scripts/check

test: deps
	@scripts/test

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

unit:
	$(CARGO) test --workspace --no-fail-fast

# Each fuzz target for 30 seconds (FUZZ_SECONDS).
fuzz:
	@scripts/fuzz

# The programs that tests run inside sandboxes.
guest:
	@test/guest/build.sh target/guest

# Figures beside native runs and, if it is on PATH, runsc.
bench: deps build guest
	@scripts/bench
	-@scripts/bench-net --quick

# Figures of servers in a sandbox: redis, nginx, iperf3, and the round trip of a small message.
bench-net: deps build guest
	@scripts/bench-net

# Figures of sandboxes that hibernate, beside frozen and reclaimed containers.
bench-hibernate: deps build guest
	@scripts/bench-hibernate

# Figures of checkpoints and restores, beside cold starts, and runsc's and runc's with CRIU if they are on PATH.
bench-snapshot: deps build
	@scripts/bench-snapshot

# Sandboxes that share a snapshot's pages
bench-templates: deps build
	@scripts/bench-templates

# Ways to bring the pages of a cold snapshot, on the functions of test/functions.
bench-prefetch: deps build
	@scripts/bench-prefetch

# Figures of functions in Python, Node and Java that hibernate, their memory packed in several ways.
bench-functions: deps build
	@scripts/bench-functions

# A day of requests to 200 functions under a memory budget, in Dormouse and in runc.
bench-faas: deps build
	$(CARGO) build --release -p faas
	@scripts/bench-faas

# The documentation as a book, in target/book; mdbook is installed below target/ if it is not there.
book:
	@[ -x target/tools/bin/mdbook ] || $(CARGO) install --quiet mdbook --version 0.5.4 --no-default-features --root target/tools
	@target/tools/bin/mdbook build

# The integration tests on the kvm platform, inside an emulated machine.
lab: deps build guest
	@scripts/lab

# Programs as people use them, in a root file system of Debian that this makes: docs/programs.md.
programs: build
	@scripts/programs

soak: deps build guest
	$(CARGO) build --release -p dormouse-test
	@scripts/soak

clean:
	$(CARGO) clean
