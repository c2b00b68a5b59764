package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// With --redact, secrets are replaced wherever they are: in strings with escape sequences, in the arguments of tools,
// which are JSON in a string, in titles, and in lines that are torn. They are counted, and all else stays as it is.
func TestP29_SecretsAreKeptOut(t *testing.T) {
	key := "sk-ant-" + "api03-" + strings.Repeat("aB3", 31) + "AA"
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(pair)
	if err != nil {
		t.Fatal(err)
	}
	private := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	quoted := func(text string) string {
		b, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	line := func(id, text string) string {
		return `{"type":"user","uuid":"` + id + `","parentUuid":null,"sessionId":"s","message":{"role":"user","content":` + quoted(text) + "}}\n"
	}
	arguments := `{"headers":{"x-api-key":` + quoted(key) + `},"key":` + quoted(private) + `}`
	whole := `{"messages":[` + "\n" + `  {"role":"user","content":` + quoted("\n"+key) + "},\n" + `  {"role":"assistant","content":"caf\u00e9"}` + "\n]}"
	store, home := t.TempDir()+"/store", t.TempDir()
	files := map[string]string{
		"lines.jsonl": line("a", "use "+key+"\nand\t"+private+"!") + line("b", arguments) + `{"torn ` + key + "\n",
		"whole.json":  whole,
	}
	dir := t.TempDir()
	for name, data := range files {
		appendTo(t, filepath.Join(dir, name), data)
	}
	appendTo(t, home+"/storage/session/p/ses_1.json", `{"id":"ses_1","projectID":"p","directory":"/w","time":{},"title":`+quoted(key)+`}`)
	appendTo(t, home+"/storage/message/ses_1/msg_1.json", `{"id":"msg_1","role":"user"}`)
	appendTo(t, home+"/storage/part/msg_1/prt_1.json", `{"id":"prt_1","type":"text","text":`+quoted(key)+`}`)
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(home, "opencode.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(strings.NewReplacer("ses_", "ses_db", `"hi"`, quoted(key)).Replace(opencodeTables)); err != nil {
		t.Fatal(err)
	}
	out := must(t, "import", dir, home, "--redact", "--store", store)
	for _, want := range []string{"redacted in lines.jsonl: 3 × anthropicapikey.ModelAPIKey, 2 × private key", "redacted in whole.json: 1 × anthropic", "redacted in ses_1.json: 2 × anthropic", "redacted in ses_db1: 1 × anthropic"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for name, id := range map[string]string{"lines.jsonl": "s", "whole.json": "whole", "opencode": "ses_1", "database": "ses_db1"} {
		got := must(t, "export", id, "--store", store) + must(t, "sessions", "--json", "--store", store)
		if strings.Contains(got, key[:20]) || strings.Contains(got, "BEGIN EC") || !strings.Contains(got, "[redacted: anthropicapikey.ModelAPIKey]") {
			t.Errorf("%s: %s", name, got)
		}
	}
	with := strings.NewReplacer(quoted("\n"+key), `"\n[redacted: anthropicapikey.ModelAPIKey]"`).Replace(whole)
	if got := must(t, "export", "whole", "--store", store); got != with {
		t.Errorf("%s\nwant %s", got, with)
	}
	got := must(t, "export", "s", "--store", store)
	for _, want := range []string{`"use [redacted: anthropicapikey.ModelAPIKey]\nand\t[redacted: private key]`, `{\"headers\":{\"x-api-key\":\"[redacted: anthropicapikey.ModelAPIKey]\"},\"key\":\"[redacted: private key]`, `{"torn [redacted: `} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if again := must(t, "import", dir, home, "--redact", "--store", store); strings.Contains(again, "redacted") || strings.Contains(again, "branched") {
		t.Errorf("%s", again)
	}
	if out := must(t, "import", filepath.Join(dir, "whole.json"), "--redact", "--dry-run", "--json", "--store", store); !strings.Contains(out, `"redacted":{"anthropicapikey.ModelAPIKey":1}`) {
		t.Errorf("%s", out)
	}
	if code, out, errs := status(t, nil, "import", dir, home, "--redact", "--replace", "--store", store); code != 0 { // It deletes nothing.
		t.Errorf("%d %s %s", code, out, errs)
	}
	followed := t.TempDir() + "/store"
	if out := must(t, "follow", "--once", "--redact", dir, "--store", followed); !strings.Contains(out, "imported whole: 2 nodes new; redacted 1 × anthropicapikey.ModelAPIKey\n") {
		t.Errorf("%s", out)
	}
	if out := must(t, "follow", "--print", "cron", "--redact", dir, "--store", followed); !strings.Contains(out, " --redact ") {
		t.Errorf("%s", out)
	}
	// Without it, everything stays as it is.
	plain := t.TempDir() + "/store"
	must(t, "import", dir, "--store", plain)
	if code, out, errs := status(t, nil, "import", filepath.Join(dir, "lines.jsonl"), "--redact", "--replace", "--store", plain); code != exitUsage || !strings.Contains(errs, "confirm with --yes") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if got := must(t, "export", "s", "--store", plain); got != files["lines.jsonl"] {
		t.Errorf("%s", got)
	}
}

// What only looks like a secret stays: hashes, ids, and text in many words.
func TestP29_OtherTextIsNoSecret(t *testing.T) {
	for _, text := range []string{
		strings.Repeat("0123456789abcdef", 4), strings.Repeat("a1b2c3d4e5", 4), "0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f", "process.someVeryLongNameOfAFunctionThatGoesOn()",
		"https://example.com/a?b=c", "mail me at a@example.com", "ssh://git@example.com/org/repo.git", "eyJhIjoxfQ", "AKIA and ASIA, the azure storage of the vault", strings.Repeat("ordinary words in a row ", 200),
	} {
		if found := findSecrets(text); len(found) > 0 {
			t.Errorf("%s: %v", text, found)
		}
	}
}

// Secrets that are known by what stands beside them are found in JSON, too, and keys in the forms that tools print; in
// broken files as well. What was JSON stays JSON.
func TestP29_SecretsInTheFormsOfTools(t *testing.T) {
	body := "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nZmFrZWtleWZha2VrZXlmYWtla2V5ZmFr\n"
	private := "-----BEGIN PRIVATE " + "KEY-----\n" + body + "-----END PRIVATE " + "KEY-----\n"
	account := `{"type":"service_account","private_key_id":"` + strings.Repeat("a1", 20) + `","private_key":` + jsonOf(t, private) + `,"client_email":"a@b.iam.gserviceaccount.com","auth_provider_x509_cert_url":"https://www.googleapis.com/oauth2/v1/certs"}`
	aws, secret := "AKIA"+"Q3EGRXQZ7YB5KLMN", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzq"+"1X2Y3Z4W"
	key := "sk-ant-" + "api03-" + strings.Repeat("aB3", 31) + "AA"
	numbered, diff := "", ""
	for i, l := range strings.Split(private, "\n") {
		numbered += fmt.Sprintf("%6d→%s\n", i+1, l)
		diff += "+" + l + "\n"
	}
	event := func(id, content string) string {
		return `{"type":"user","uuid":"` + id + `","parentUuid":null,"sessionId":"s","message":{"role":"user","content":` + content + "}}"
	}
	for name, c := range map[string]struct{ data, secret string }{
		"account":  {event("a", jsonOf(t, account)), "ZmFrZWtl"},
		"numbered": {event("a", jsonOf(t, numbered)), "ZmFrZWtl"},
		"diff":     {event("a", jsonOf(t, diff)), "ZmFrZWtl"},
		"env":      {event("a", jsonOf(t, "KEY="+jsonOf(t, private))), "ZmFrZWtl"},
		"cut":      {event("a", jsonOf(t, private[:80])), "MIIEvQ"},
		"pair":     {event("a", `[{"type":"tool_result","content":`+jsonOf(t, `{"Credentials":{"AccessKeyId":"`+aws+`","SecretAccessKey":"`+secret+`"}}`)+"}]"), secret[:10]},
		"mark":     {"\ufeff" + event("a", `"\n`+key+`\n"`) + "\n" + event("b", `"x"`), key[:20]},
		"two":      {event("a", `"\n`+key+`"`) + event("b", jsonOf(t, "  "+`{"dsn":"postgres://user:pass`+`word@h/x"}`)), "password"},
		"escaped":  {event("a", strings.Replace(jsonOf(t, key), `"s`, `"\u0073`, 1)), key[2:20]},
	} {
		t.Run(name, func(t *testing.T) {
			store := t.TempDir() + "/store"
			out := must(t, "import", write(t, "x.jsonl", c.data+"\n"), "--redact", "--store", store)
			got := must(t, "export", "s", "--store", store)
			if !strings.Contains(c.data, c.secret) || strings.Contains(got, c.secret) || !strings.Contains(got, "[redacted: ") || !strings.Contains(out, "redacted in x.jsonl") {
				t.Errorf("%s\n%s", out, got)
			}
			if strings.Contains(out, "unreadable") || strings.Count(got, "uuid") != strings.Count(c.data, "uuid") {
				t.Errorf("%s\n%s", out, got)
			}
		})
	}
}

func jsonOf(t *testing.T, text string) string {
	t.Helper()
	b, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
