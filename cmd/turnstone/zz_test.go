package main
import ("testing";"io")
func TestZZ(t *testing.T) { a := &app{}; c := a.command(); c.SetOut(io.Discard); c.SetErr(io.Discard); c.SetArgs([]string{"import", "/tmp/home/h200", "--store", t.TempDir()+"/s"}); if err := c.ExecuteContext(t.Context()); err != nil { t.Fatal(err) } }
