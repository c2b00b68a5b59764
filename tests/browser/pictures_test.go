package browser

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "write the pictures of the documentation")

// demo makes the store of `turnstone demo`, and returns its directory.
func demo(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if out, err := exec.Command(command, "demo", "--store", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// The pictures of the documentation are of the store that the demo makes: `go test . -run Pictures -update` takes them.
func TestPictures(t *testing.T) {
	s := serve(t, demo(t))
	b := open(t, s)
	b.run(chromedp.EmulateViewport(1100, 700, chromedp.EmulateScale(1)))
	b.signIn(s.tokens["all"])
	for name, show := range map[string]func(){
		"sessions": func() { b.show("") },
		"session":  func() { b.show("session", "id", "trip") },
		"history":  func() { b.show("history", "id", "trip") },
		"dark": func() {
			call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
			b.show("session", "id", "trip")
		},
	} {
		show()
		b.has("trip")
		image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		must(t, err)
		call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{})
		if len(image) < 10_000 {
			t.Errorf("the picture %s has %d bytes", name, len(image))
		}
		if *update {
			must(t, os.MkdirAll("../../docs/pictures", 0o755))
			must(t, os.WriteFile(filepath.Join("../../docs/pictures", name+".png"), image, 0o644))
		}
	}
}
