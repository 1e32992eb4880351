# Short commands for every day. `make ci` is what has to pass before a change lands.

include .ci/versions

MODULES := . examples bench

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile

.PHONY: fmt
fmt: ## format all Go files
	gofmt -s -w .

.PHONY: lint
lint: ## vet, staticcheck and errorlint, with the versions of .ci/versions
	@unformatted=$$(gofmt -s -l .) && test -z "$$unformatted" || { echo "run make fmt:" $$unformatted; exit 1; }
	set -e; for module in $(MODULES); do \
		go -C $$module vet ./...; \
		go -C $$module run $(STATICCHECK) ./...; \
		go -C $$module run $(ERRORLINT) ./...; \
	done

.PHONY: test
test: ## all tests of the library; those of real servers are skipped where redis-server is missing
	go test ./...

.PHONY: race
race: ## the same under the race detector, without the model checker
	go test -race -skip '^TestModel' ./...

.PHONY: bench
bench: ## the Go benchmarks (needs a redis-server); bench/ compares with other libraries
	go test -run '^$$' -bench . -benchmem .

.PHONY: ci
ci: ## everything, as before a merge; installs what is missing
	bash .ci/run
