package pgtest_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// The test binary starts a server and waits when this is set.
const childVariable = "PGTEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		s, err := pgtest.Start(context.Background())
		if err != nil {
			panic(err)
		}
		fmt.Println(s.Socket())
		select {}
	}
	os.Exit(pgtest.Main(m))
}

// Tests that are killed leave no server behind.
func TestServersEndWithTheTests(t *testing.T) {
	testkit.Slow(t)
	pgtest.URL(t) // or it is skipped
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	socket, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	socket = strings.TrimSpace(socket)
	if _, err := os.Stat(socket); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	for range 600 {
		if _, err := os.Stat(socket); os.IsNotExist(err) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("the server's directory is still there")
}
