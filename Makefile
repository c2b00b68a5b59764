# What a developer runs. `make ci` is everything that a change has to pass.

modules := $(shell find . -mindepth 2 -name go.mod -exec dirname {} \;)

.PHONY: test short race bench lint api ci

test: ; go test ./...
short: ; go test -short ./...
race: ; go test -race -timeout 20m ./...
bench: ; go test ./bench -run '^$$' -bench . -count 6
lint:
	test -z "$$(gofumpt -l . | tee /dev/stderr)"
	go vet ./...
	staticcheck ./...
	for m in $(modules); do (cd $$m && go vet ./... && staticcheck ./...) || exit 1; done
api: ; go test . -run API -update
ci: ; bash .ci/run
