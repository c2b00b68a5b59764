# What a developer runs. `make ci` is everything that a change has to pass.

modules := $(shell find . -mindepth 2 -name go.mod -exec dirname {} \;)

.PHONY: test short race bench lint api python python-deps ts elixir dist ci

test: ; go test ./...
short: ; go test -short ./...
race: ; go test -race -timeout 20m ./...
bench: ; go test ./bench -run '^$$' -bench . -count 6
lint:
	test -z "$$(gofumpt -l . | tee /dev/stderr)"
	go vet ./...
	staticcheck ./...
	for m in $(modules); do (cd $$m && go vet ./... && staticcheck ./...) || exit 1; done
api: ; go test ./tests -run API -update
# In an environment of its own, which it makes: python3 with the module venv is needed. Of the Claude Agent SDK the source
# is enough: its wheel has the whole of Claude Code.
python-deps:
	cd python && { test -x .venv/bin/python || python3 -m venv .venv; } && .venv/bin/pip install -q --no-binary claude-agent-sdk -e '.[test]' hatchling
python: python-deps
	cd python && .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/python -m pytest -q -n 3
# With Node 20 or later. What it needs is in ts/node_modules then.
ts:
	cd ts && npm install --no-audit --no-fund --loglevel=error && npm run --silent check && npm test
# With Elixir 1.14 and erlang-jiffy or later.
elixir:
	go build -o $(or $(TMPDIR),/tmp)/turnstone-for-elixir ./cmd/turnstone
	cd examples/elixir && mix format --check-formatted && TURNSTONE_COMMAND=$(or $(TMPDIR),/tmp)/turnstone-for-elixir elixir -r turnstone.ex -r hosts.ex hosts_test.exs
# What a release has, in dist/: the command, wheels and npm packages for each system. After `make python ts`.
dist: ; bash .ci/dist
ci: ; bash .ci/run
