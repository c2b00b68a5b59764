package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The command tells the program, which is of the framework's language, the source and the store. If that program is missing,
// the command says what to install.
func TestP32_MigrateRunsTheProgramOfTheFramework(t *testing.T) {
	dir := t.TempDir()
	told := filepath.Join(dir, "told")
	python := filepath.Join(dir, "python")
	script := "#!/bin/sh\necho \"$@\" >>" + told + "\necho \"command $TURNSTONE_COMMAND\" >>" + told + "\ncase \"$*\" in *bad*) echo different >&2; exit 1;; esac\n[ \"$1\" = -c ] || echo 3 found\n"
	if err := os.WriteFile(python, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(dir, "store")
	env := []string{"TURNSTONE_PYTHON=" + python, "TURNSTONE_COMMAND="}
	code, out, errs := status(t, env, "migrate", "langgraph", "sqlite:a b.db", "--dry-run", "--store", "pebble:"+store)
	if code != 0 || out != "3 found\n" || errs != "" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	said, err := os.ReadFile(told)
	if err != nil {
		t.Fatal(err)
	}
	want := "-m turnstonedb.migrate langgraph sqlite:a b.db --store " + store + " --namespace  --dry-run\ncommand " + os.Args[0]
	if !strings.Contains(string(said), want) {
		t.Errorf("%s\nwant %s", said, want)
	}
	for _, c := range []struct {
		code int
		says string
		env  []string
		args []string
	}{
		{exitFailed, "different", env, []string{"migrate", "agents", "bad", "--store", store}},
		{exitUsage, `no migration from "langchain"; there are those from langgraph, agents, adk`, env, []string{"migrate", "langchain", "x", "--store", store}},
		{exitUsage, "run `turnstone serve`", env, []string{"migrate", "agents", "x", "--store", "postgres://host/db"}},
		{exitUsage, "usage", env, []string{"migrate", "agents"}},
		{exitFailed, "Install turnstonedb[adk], or set TURNSTONE_PYTHON", []string{"TURNSTONE_PYTHON=/no/such/python"}, []string{"migrate", "adk", "x", "--store", store}},
	} {
		code, out, errs := status(t, c.env, c.args...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%q: %d %q %q", c.args, code, out, errs)
		}
	}
}
