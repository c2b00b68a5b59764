package adk_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/adk/v2/artifact"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// files are the artifacts of one session.
type files struct {
	*testing.T
	artifact.Service
	session string
}

func (f files) save(name string, part *genai.Part) int64 {
	f.Helper()
	r, err := f.Save(ctx, &artifact.SaveRequest{AppName: "app", UserID: "user", SessionID: f.session, FileName: name, Part: part})
	if err != nil {
		f.Fatal(err)
	}
	return r.Version
}

func (f files) load(name string, version int64) (string, error) {
	r, err := f.Load(ctx, &artifact.LoadRequest{AppName: "app", UserID: "user", SessionID: f.session, FileName: name, Version: version})
	if err != nil {
		return "", err
	}
	if r.Part.InlineData != nil {
		return r.Part.InlineData.MIMEType + " " + string(r.Part.InlineData.Data), nil
	}
	return r.Part.Text, nil
}

// loads fails unless a version has the content.
func (f files) loads(name string, version int64, want string) {
	f.Helper()
	if got, err := f.load(name, version); err != nil || got != want {
		f.Errorf("version %d of %q: %q, %v", version, name, got, err)
	}
}

func (f files) delete(name string, version int64) {
	f.Helper()
	if err := f.Delete(ctx, &artifact.DeleteRequest{AppName: "app", UserID: "user", SessionID: f.session, FileName: name, Version: version}); err != nil {
		f.Error(err)
	}
}

func (f files) versions(name string) []int64 {
	f.Helper()
	r, err := f.Versions(ctx, &artifact.VersionsRequest{AppName: "app", UserID: "user", SessionID: f.session, FileName: name})
	if err != nil {
		f.Error(err)
		return nil
	}
	return r.Versions
}

func (f files) info(name string, version int64) (*artifact.ArtifactVersion, error) {
	r, err := f.GetArtifactVersion(ctx, &artifact.GetArtifactVersionRequest{AppName: "app", UserID: "user", SessionID: f.session, FileName: name, Version: version})
	if err != nil {
		return nil, err
	}
	return r.ArtifactVersion, nil
}

// lists fails unless the list has these names.
func (f files) lists(want ...string) {
	f.Helper()
	r, err := f.List(ctx, &artifact.ListRequest{AppName: "app", UserID: "user", SessionID: f.session})
	if err != nil || !slices.Equal(r.FileNames, want) {
		f.Errorf("%v, %v, want %v", r, err, want)
	}
}

// isMissing fails unless there is nothing of that name.
func (f files) isMissing(name string, version int64) {
	f.Helper()
	_, loaded := f.load(name, version)
	_, info := f.info(name, version)
	for _, err := range []error{loaded, info} {
		if !errors.Is(err, fs.ErrNotExist) {
			f.Errorf("version %d of %q: %v", version, name, err)
		}
	}
	if version != 0 {
		return
	}
	if r, err := f.Versions(ctx, &artifact.VersionsRequest{AppName: "app", UserID: "user", SessionID: f.session, FileName: name}); !errors.Is(err, fs.ErrNotExist) {
		f.Errorf("%v, %v", r, err)
	}
}

func bytesPart(content string) *genai.Part {
	return genai.NewPartFromBytes([]byte(content), "image/png")
}

// The kit's own cases for artifact services are in a package that only the kit may import. These are the same calls,
// on every engine.
func TestAD4_ArtifactsDoWhatTheKitExpectsOnEveryEngine(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		service := adk.NewArtifacts(open(t))
		t.Run("empty", func(t *testing.T) {
			f := files{t, service, "empty"}
			f.isMissing("file", 0)
			f.lists()
			f.delete("file", 0)
			f.delete("file", 1)
		})
		for _, prefix := range []string{"", "user:"} {
			t.Run("names that begin with "+prefix, func(t *testing.T) {
				f, other := files{t, service, "s" + prefix}, files{t, service, "other"}
				one, two := prefix+"one", prefix+"two"
				for i, content := range []string{"v1", "v2", "v3"} {
					if v := f.save(one, bytesPart(content)); v != int64(i+1) {
						t.Fatal(v)
					}
				}
				f.save("three", bytesPart("v1"))
				f.save(two, genai.NewPartFromText("some text"))
				f.loads(one, 0, "image/png v3")
				f.loads(one, 1, "image/png v1")
				f.loads(one, 2, "image/png v2")
				f.loads(two, 0, "some text")
				f.isMissing(one, 99)
				want := []string{one, "three", two}
				slices.Sort(want)
				f.lists(want...)
				if got := f.versions(one); !slices.Equal(got, []int64{3, 2, 1}) {
					t.Error(got)
				}
				for version, want := range map[int64]int64{0: 3, 2: 2} {
					if i, err := f.info(one, version); err != nil || i.Version != want || i.MimeType != "image/png" || i.CreateTime.IsZero() {
						t.Error(i, err)
					}
				}
				if prefix == "user:" {
					other.loads(one, 0, "image/png v3")
					other.lists(one, two)
				} else {
					other.isMissing(one, 0)
				}

				f.delete(one, 3)
				f.loads(one, 0, "image/png v2")
				f.isMissing(one, 3)
				f.delete(one, 0)
				f.isMissing(one, 0)
				f.lists(slices.DeleteFunc(want, func(n string) bool { return n == one })...)
				f.delete(two, 1) // the only one
				f.delete("three", 0)
				f.lists()
			})
		}
	})
}

func TestAD4_AVersionIsGivenOnce(t *testing.T) {
	service := adk.NewArtifacts(storetest.Pebble(t))
	f := files{t, service, "s"}
	var mu sync.Mutex
	var got []int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			r, err := service.Save(ctx, &artifact.SaveRequest{AppName: "app", UserID: "user", SessionID: "s", FileName: "file", Part: bytesPart("x")})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r.Version)
		})
	}
	wg.Wait()
	slices.Sort(got)
	if len(got) != 20 || got[0] != 1 || got[19] != 20 || len(slices.Compact(got)) != 20 {
		t.Error(got)
	}
	f.delete("file", 20)
	if v := f.save("file", bytesPart("y")); v != 21 {
		t.Errorf("the number of a deleted version is given again: %d", v)
	}
	r := &artifact.SaveRequest{AppName: "app", UserID: "user", SessionID: "s", FileName: "file", Part: bytesPart("z"), Version: 30}
	if saved, err := service.Save(ctx, r); err != nil || saved.Version != 30 {
		t.Error(saved, err)
	}
	if _, err := service.Save(ctx, r); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
}

// More versions than one commit deletes, and names that share their beginning.
func TestAD4_AllVersionsAreDeletedWhateverTheirNumber(t *testing.T) {
	f := files{t, adk.NewArtifacts(storetest.Memory(t)), "s"}
	for range 300 {
		f.save("file", bytesPart("x"))
	}
	f.save("file2", bytesPart("other"))
	f.save("fil", bytesPart("other"))
	if n := len(f.versions("file")); n != 300 {
		t.Fatal(n)
	}
	f.delete("file", 7) // far from the last one
	if n := len(f.versions("file")); n != 299 {
		t.Fatal(n)
	}
	f.delete("file", 0)
	f.isMissing("file", 0)
	f.lists("fil", "file2")
	f.loads("file2", 0, "image/png other")
}

func TestAD5_EqualArtifactsAreStoredOnceAndDeletedOnesLeaveTheStore(t *testing.T) {
	store := storetest.Memory(t)
	f := files{t, adk.NewArtifacts(store), "s"}
	retained := func() int {
		t.Helper()
		r, err := store.GC(ctx, gc.Options{Full: true})
		if err != nil {
			t.Fatal(err)
		}
		return r.Retained
	}
	content := strings.Repeat("a large file ", 100_000)
	f.save("file0", bytesPart(content))
	once := retained()
	for i := range 10 {
		f.save(fmt.Sprint("file", i), bytesPart(content))
	}
	f.save("text", genai.NewPartFromText(content))
	f.loads("file3", 1, "image/png "+content)
	f.loads("text", 1, content)
	if n := retained(); once == 0 || n != once {
		t.Errorf("%d blobs, and %d of the first one", n, once)
	}
	for i := range 10 {
		f.delete(fmt.Sprint("file", i), 0)
	}
	f.delete("text", 1)
	if _, err := store.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := retained(); n != 0 {
		t.Errorf("%d blobs are left", n)
	}
}

func TestAD5_APartKeepsAllThatItHas(t *testing.T) {
	f := files{t, adk.NewArtifacts(storetest.Memory(t)), "s"}
	part := &genai.Part{InlineData: &genai.Blob{Data: []byte{0, 255, '\n'}, MIMEType: "video/mp4", DisplayName: "clip"}, Thought: true}
	f.save("clip", part)
	f.save("empty", &genai.Part{InlineData: &genai.Blob{MIMEType: "text/plain"}})
	r, err := f.Load(ctx, &artifact.LoadRequest{AppName: "app", UserID: "user", SessionID: "s", FileName: "clip"})
	if err != nil || !bytes.Equal(r.Part.InlineData.Data, part.InlineData.Data) || r.Part.InlineData.DisplayName != "clip" || !r.Part.Thought {
		t.Errorf("%+v, %v", r, err)
	}
	if len(part.InlineData.Data) != 3 {
		t.Error("the caller's part was changed")
	}
	f.loads("empty", 0, "text/plain ")
}

func TestAD4_VersionsThatCanNotBeAreRefused(t *testing.T) {
	f := files{t, adk.NewArtifacts(storetest.Memory(t)), "s"}
	for _, v := range []int64{-1, math.MaxInt64} {
		_, err := f.Save(ctx, &artifact.SaveRequest{AppName: "app", UserID: "user", SessionID: "s", FileName: "file", Part: bytesPart("x"), Version: v})
		if !errors.Is(err, turnstone.ErrInvalid) {
			t.Error(v, err)
		}
	}
	if v := f.save("file", bytesPart("x")); v != 1 {
		t.Error(v)
	}
}

func TestAD4_AVersionWhoseReplyIsLostIsStoredOnce(t *testing.T) {
	faulty := &enginetest.Faulty{Engine: memory.New()}
	f := files{t, adk.NewArtifacts(storetest.On(t, faulty).Factory()), "s"}
	f.save("file", bytesPart("x"))
	lost := 0
	faulty.Plan = func(call enginetest.Call) enginetest.Fault {
		switch {
		case lost > 0 && lost < 4: // so that the store can't find out by itself
			lost++
			return enginetest.Fault{Err: engine.ErrUnavailable}
		case call.Op == "Apply" && lost == 0 && sets(call.Batch, "version/file/"):
			lost++
			return enginetest.Fault{Err: engine.ErrUnknown, Applied: true}
		}
		return enginetest.Fault{}
	}
	_, err := f.Save(ctx, &artifact.SaveRequest{AppName: "app", UserID: "user", SessionID: "s", FileName: "file", Part: bytesPart("y")})
	faulty.Plan = nil
	if err != nil && !errors.Is(err, turnstone.ErrOutcomeUnknown) || lost == 0 {
		t.Error(lost, err)
	}
	if got := f.versions("file"); len(got) != 2 {
		t.Error(got)
	}
}

// sets reports whether a batch sets a key that has the text.
func sets(b *engine.Batch, text string) bool {
	return slices.ContainsFunc(b.Sets, func(p engine.Pair) bool { return bytes.Contains(p.Key, []byte(text)) })
}
