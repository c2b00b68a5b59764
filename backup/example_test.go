package backup_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A session is brought back as it was at the end of the first run.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	eng := memory.New()
	defer eng.Close()
	store, err := turnstone.Open(ctx, eng, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	session, _, err := store.Create(ctx, turnstone.Request{ID: "trip"})
	if err != nil {
		log.Fatal(err)
	}
	say := func(text string) {
		if _, err := session.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(text)}}}); err != nil {
			log.Fatal(err)
		}
	}

	target := backup.Directory(filepath.Join(dir, "safe"))
	say("Where to?")
	first, err := backup.Run(ctx, store, target, backup.Options{})
	if err != nil {
		log.Fatal(err)
	}
	say("To the sea.")
	if _, err := backup.Run(ctx, store, target, backup.Options{}); err != nil {
		log.Fatal(err)
	}

	done, err := backup.Restore(ctx, target, store, backup.RestoreOptions{At: first.Time, Sessions: []string{"trip"}, As: "trip/before"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(done.Sessions[0].ID, "is at revision", done.Sessions[0].To)
	// Output: trip/before is at revision 1
}
