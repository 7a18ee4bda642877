# SPDX-License-Identifier: GPL-2.0
#
# User commands. All builds run in a build root (qemu/buildroot), for Debian's kernels and a debug
# kernel (qemu/kernel), so that every machine gets the same results. See docs/building.md and
# docs/vm.md.

MAKEFLAGS += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

ifneq ($(words $(CURDIR)),1)
$(error make and Kbuild support no blanks in paths: move the checkout ($(CURDIR)))
endif

KERNEL ?= default
override KERNEL := $(patsubst 7.2,default,$(KERNEL))
GUEST  ?= trixie
HOSTS  ?= 1
DRIVER ?= rrxe
OUT    := $(if $(filter environment command%,$(origin OUT)),$(OUT))

out     := $(CURDIR)/out
in-root := $(CURDIR)/qemu/in-root

##@ The two commands to begin with

run: modules-$(KERNEL) provider ## rrxe between two virtual machines: rping, perftest, one table
	@qemu/run

test: modules-$(KERNEL) provider ## all tests, on the host and in guests (KERNEL=7.3: all of the guest lane there; ARGS=… goes to selftests/run test)
	@selftests/run test --kernel $(KERNEL) $(ARGS)

test-debug: modules-debug provider ## all guest tests under the debug kernel
	@selftests/run test --lane debug --all-debug $(ARGS)

test-offloads: modules-default provider ## the suites that depend on the form of packets, without each offload in turn [ARGS="gro sg"]
	@selftests/run offloads $(ARGS)

fuzz: ## the fuzz targets, longer than make test does: [TARGET=…] [SECONDS=600] [INPUT=file: run that once]
	@selftests/run fuzz $(if $(TARGET),--target '$(TARGET)') $(if $(SECONDS),--seconds '$(SECONDS)') $(if $(INPUT),--input '$(INPUT)')

SEEDS ?= 0..1000000
EFFICIENCY_SEEDS ?= 0..20000

soak: ## a million seeds of the simulation (SEEDS=from..to), 20,000 of its flows (EFFICIENCY_SEEDS), the larger model, the mutants
	@selftests/run simulation --seeds $(SEEDS) --group 100000
	@selftests/run efficiency --seeds $(EFFICIENCY_SEEDS)
	@selftests/run model
	@selftests/run model --messages 3 --duplicates 0 --overtakes 0
	@selftests/run mutants

replay: ## SEED=n: a seed of the simulation, with its packets [EFFICIENCY=1: of its flows through a bottleneck]
	@selftests/run $(if $(filter 1,$(EFFICIENCY)),efficiency,simulation) --replay $(SEED)

mutants: ## bugs seeded into the core, each of which the simulation must find
	@selftests/run mutants $(ARGS)

goodput: modules-default provider ## what a bad wire costs, beside rdma_rxe: one table [ARGS="rrxe READ": only that]
	@selftests/run goodput $(ARGS)

fairness: modules-default provider ## how rrxe shares a slow link with TCP: one table [ARGS="fq_codel bbr": only that]
	@selftests/run fairness $(ARGS)

# Only the native lane needs its kernel.
bench: $(if $(filter native,$(or $(LANE),$(if $(ARGS),default,native))),modules-native)
bench-quick: $(if $(filter native,$(LANE)),modules-native)

bench: modules-default provider ## rrxe beside rdma_rxe, siw and TCP: out/bench/report.md [ARGS="rrxe SEND"] [COMPARE=old.json] [LANE=deterministic|wire|native|machines|parallel] [PARAMETERS="same_host_icrc=1"]
	@selftests/run bench $(if $(PARAMETERS),--parameters '$(PARAMETERS)') $(if $(LANE),--lane '$(LANE)') $(if $(COMPARE),--compare '$(COMPARE)') $(ARGS)

bench-quick: modules-default provider ## the same of rrxe and rdma_rxe only, once each, in under 5 minutes: out/bench-quick/report.md
	@selftests/run bench --quick $(if $(PARAMETERS),--parameters '$(PARAMETERS)') $(if $(LANE),--lane '$(LANE)') $(if $(COMPARE),--compare '$(COMPARE)') $(ARGS)

bench-core: ## instructions and time of the core per packet, on the host [ARGS="requester SEND"] [COMPARE=old.json]
	@selftests/run bench-core $(if $(COMPARE),--compare '$(COMPARE)') $(ARGS)

profile: $(if $(filter native,$(LANE)),modules-native)

profile: modules-default provider ## where the instructions of a case of make bench go: ARGS="rrxe SEND 4" [GROUP=connections] [LANE=wire|native]
	@selftests/run profile $(if $(LANE),--lane '$(LANE)') $(if $(GROUP),--group '$(GROUP)') $(ARGS)

##@ Virtual machines

# $(call vm-option,NAME): --name=value if the user set the variable NAME.
vm-option = $(if $($(1)),--$(shell echo $(1) | tr A-Z a-z)='$($(1))')
vm-options = --hosts=$(HOSTS) --kernel=$(KERNEL) --guest=$(GUEST) --driver=$(DRIVER) $(if $(filter 1,$(ICOUNT)),--icount) $(if $(filter 1,$(EXTRA)),--extra) \
    $(foreach name,PACKAGES CPUS MEM MTU WIRE TIMEOUT OUT SHARE APPEND KLOG,$(call vm-option,$(name)))
vm-needs = $(if $(findstring rrxe,$(DRIVER)),modules-$(KERNEL) provider)

vm: $(vm-needs) ## SCRIPT=file in a guest: [HOSTS=1|2] [KERNEL=default|7.3|debug|native] [GUEST=trixie|forky] [DRIVER=rrxe|rdma_rxe|siw|none] [EXTRA=1] [PACKAGES=…] [CPUS=n] [MEM=m] [MTU=n] [WIRE=frames|taps|plain-taps] [ICOUNT=1] [TIMEOUT=s] [OUT=folder] [SHARE=folder] [APPEND=words] [KLOG=off] [ARGS=…]
	@qemu/vm.py $(vm-options) $(if $(SCRIPT),'$(SCRIPT)') $(ARGS)

shell: $(vm-needs) ## an interactive guest with rrxe0 up (the same variables)
	@qemu/vm.py --shell $(vm-options)

##@ Parts

ifdef KDIR
# The compiler of the kernel's own build; LLVM=… on the command line selects another version of it.
kdir-llvm = $(if $(shell grep -s '^CONFIG_CC_IS_CLANG=y' $(KDIR)/.config $(KDIR)/include/config/auto.conf),LLVM=$(or $(LLVM),1))

modules: ## rrxe.ko for KERNEL=default|7.3|debug|native, or with this machine's tools for KDIR=/lib/modules/…/build
	@tree=$$(packaging/kernel-tree '$(KDIR)' "$$(qemu/cache-folder)/kernel-tree") && \
	    rm -rf $(out)/modules/kdir && mkdir -p $(out)/modules/kdir && \
	    $(MAKE) -C "$$tree" M=$(CURDIR) MO=$(out)/modules/kdir $(kdir-llvm) modules
	@echo "rrxe: built out/modules/kdir/rrxe.ko" >&2
else
modules: modules-$(KERNEL)
endif

modules-default modules-7.3 modules-debug modules-native: modules-%:
	@qemu/build-module $*

provider: programs ## librrxe, the rdma-core provider
	@qemu/build-provider

programs: ## test programs in C for guests
	@qemu/build-programs

deb: provider ## Debian packages: out/deb/*.deb, which lintian has looked at
	@packaging/build-deb

lint: ## rustfmt, clippy on module, core, provider and host tools, layers, unused bindings, shellcheck, plain English
	@qemu/lint

clean: ## removes out/; the caches stay (qemu/cache-folder says where)
	rm -rf out

##@ This machine

install: ## module, provider, .driver file and udev rule for the running kernel (DESTDIR, KDIR honoured)
	@qemu/install install

uninstall: ## removes what install installed
	@qemu/install uninstall

##@ Help

help: ## this list
	@awk 'BEGIN { FS = ":.*## " } \
	    /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	    /^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

.PHONY: run test test-debug test-offloads fuzz soak replay mutants goodput fairness bench bench-quick bench-core profile vm shell modules modules-default modules-7.3 modules-debug modules-native provider programs deb lint clean install uninstall help
