package testkit_test

import (
	"flag"
	"testing"

	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestTheSizeFollowsTheEnvironmentAndTheFlag(t *testing.T) {
	short := flag.Lookup("test.short")
	was := short.Value.String()
	defer short.Value.Set(was)
	for _, c := range []struct {
		long, short string
		want        string
	}{
		{"", "true", "short"}, {"0", "true", "short"}, {"1", "false", "long"}, {"1", "true", "long"}, {"yes", "false", "long"},
	} {
		t.Setenv("TURNSTONE_LONG", c.long)
		if err := short.Value.Set(c.short); err != nil {
			t.Fatal(err)
		}
		if got := testkit.Pick("long", "usual", "short"); got != c.want || testkit.Long() != (c.want == "long") {
			t.Errorf("TURNSTONE_LONG=%q, -short=%s: %s, %v", c.long, c.short, got, testkit.Long())
		}
	}
	t.Setenv("TURNSTONE_LONG", "")
	if err := short.Value.Set("false"); err != nil {
		t.Fatal(err)
	}
	if got := testkit.Pick("long", "usual", "short"); got == "long" || !testkit.Race && got != "usual" {
		t.Errorf("by default: %s", got)
	}
}

func TestSlowSkipsWithShortUnlessAllIsAskedFor(t *testing.T) {
	short := flag.Lookup("test.short")
	was := short.Value.String()
	defer short.Value.Set(was)
	for _, c := range []struct {
		long, short string
		skips       bool
	}{{"", "true", true}, {"", "false", false}, {"1", "true", false}} {
		t.Setenv("TURNSTONE_LONG", c.long)
		if err := short.Value.Set(c.short); err != nil {
			t.Fatal(err)
		}
		skipped := false
		t.Run("", func(t *testing.T) {
			defer func() { skipped = t.Skipped() }()
			testkit.Slow(t)
		})
		if skipped != c.skips {
			t.Errorf("TURNSTONE_LONG=%q, -short=%s: skipped is %v", c.long, c.short, skipped)
		}
	}
}
