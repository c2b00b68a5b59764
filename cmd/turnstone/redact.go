package main

import (
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strings"

	"github.com/google/osv-scalibr/veles"
	"github.com/google/osv-scalibr/veles/secrets/anthropicapikey"
	"github.com/google/osv-scalibr/veles/secrets/awsaccesskey"
	"github.com/google/osv-scalibr/veles/secrets/azurestorageaccountaccesskey"
	"github.com/google/osv-scalibr/veles/secrets/azuretoken"
	"github.com/google/osv-scalibr/veles/secrets/bitwardenoauth2access"
	"github.com/google/osv-scalibr/veles/secrets/circleci"
	"github.com/google/osv-scalibr/veles/secrets/cloudflareapitoken"
	"github.com/google/osv-scalibr/veles/secrets/cratesioapitoken"
	"github.com/google/osv-scalibr/veles/secrets/cursorapikey"
	"github.com/google/osv-scalibr/veles/secrets/denopat"
	"github.com/google/osv-scalibr/veles/secrets/digitaloceanapikey"
	"github.com/google/osv-scalibr/veles/secrets/discordbottoken"
	"github.com/google/osv-scalibr/veles/secrets/dockerhubpat"
	"github.com/google/osv-scalibr/veles/secrets/elasticcloudapikey"
	"github.com/google/osv-scalibr/veles/secrets/gcpapikey"
	"github.com/google/osv-scalibr/veles/secrets/gcpexpressmode"
	"github.com/google/osv-scalibr/veles/secrets/gcpoauth2access"
	"github.com/google/osv-scalibr/veles/secrets/gcpoauth2client"
	"github.com/google/osv-scalibr/veles/secrets/gcshmackey"
	"github.com/google/osv-scalibr/veles/secrets/gitbasicauth/bitbucket"
	"github.com/google/osv-scalibr/veles/secrets/gitbasicauth/codecatalyst"
	"github.com/google/osv-scalibr/veles/secrets/gitbasicauth/codecommit"
	"github.com/google/osv-scalibr/veles/secrets/github"
	"github.com/google/osv-scalibr/veles/secrets/gitlabpat"
	"github.com/google/osv-scalibr/veles/secrets/grokxaiapikey"
	"github.com/google/osv-scalibr/veles/secrets/hashicorpvault"
	"github.com/google/osv-scalibr/veles/secrets/hcp"
	"github.com/google/osv-scalibr/veles/secrets/herokuplatformkey"
	"github.com/google/osv-scalibr/veles/secrets/huggingfaceapikey"
	"github.com/google/osv-scalibr/veles/secrets/jwt"
	"github.com/google/osv-scalibr/veles/secrets/mistralapikey"
	"github.com/google/osv-scalibr/veles/secrets/npmjsaccesstoken"
	"github.com/google/osv-scalibr/veles/secrets/onepasswordkeys"
	"github.com/google/osv-scalibr/veles/secrets/openai"
	"github.com/google/osv-scalibr/veles/secrets/openrouter"
	"github.com/google/osv-scalibr/veles/secrets/packagist"
	"github.com/google/osv-scalibr/veles/secrets/paystacksecretkey"
	"github.com/google/osv-scalibr/veles/secrets/perplexityapikey"
	"github.com/google/osv-scalibr/veles/secrets/postmanapikey"
	"github.com/google/osv-scalibr/veles/secrets/pypiapitoken"
	"github.com/google/osv-scalibr/veles/secrets/pyxkeyv1"
	"github.com/google/osv-scalibr/veles/secrets/pyxkeyv2"
	"github.com/google/osv-scalibr/veles/secrets/recaptchakey"
	"github.com/google/osv-scalibr/veles/secrets/rubygemsapikey"
	"github.com/google/osv-scalibr/veles/secrets/salesforceoauth2access"
	"github.com/google/osv-scalibr/veles/secrets/salesforceoauth2client"
	"github.com/google/osv-scalibr/veles/secrets/salesforceoauth2jwt"
	"github.com/google/osv-scalibr/veles/secrets/salesforceoauth2refresh"
	"github.com/google/osv-scalibr/veles/secrets/sendgrid"
	"github.com/google/osv-scalibr/veles/secrets/slacktoken"
	"github.com/google/osv-scalibr/veles/secrets/squareapikey"
	"github.com/google/osv-scalibr/veles/secrets/stripeapikeys"
	"github.com/google/osv-scalibr/veles/secrets/supabase"
	"github.com/google/osv-scalibr/veles/secrets/telegrambotapitoken"
	"github.com/google/osv-scalibr/veles/secrets/tinkkeyset"
	"github.com/google/osv-scalibr/veles/secrets/urlcreds"
	"github.com/google/osv-scalibr/veles/secrets/vapid"

	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

const redactHelp = "keep passwords, keys and tokens out: those that the detectors of OSV-SCALIBR find are replaced by what they are, and counted; a transcript with any is not exported byte for byte, and what is stored already stays"

// detectors find the secrets of services that have a form of their own. Those that are slow, or that take other text for
// secrets, search only a text that has one of the words, in small letters.
var detectors = []struct {
	veles.Detector
	words string
}{
	{anthropicapikey.NewDetector(), ""},
	{awsaccesskey.NewDetector(), "akia asia"},
	{azurestorageaccountaccesskey.NewDetector(), "azure storage"},
	{azuretoken.NewDetector(), ""},
	{bitwardenoauth2access.NewDetector(), ""},
	{circleci.NewPersonalAccessTokenDetector(), ""},
	{circleci.NewProjectTokenDetector(), ""},
	{cloudflareapitoken.NewDetector(), "cloudflare cf"},
	{cratesioapitoken.NewDetector(), "cio"},
	{cursorapikey.NewDetector(), "key_"},
	{denopat.NewOrgTokenDetector(), ""},
	{denopat.NewUserTokenDetector(), ""},
	{digitaloceanapikey.NewDetector(), ""},
	{discordbottoken.NewDetector(), "discord"},
	{dockerhubpat.NewDetector(), "dckr_pat_"},
	{elasticcloudapikey.NewDetector(), ""},
	{gcpapikey.NewDetector(), ""},
	{gcpexpressmode.NewDetector(), ""},
	{gcpoauth2access.NewDetector(), "ya29."},
	{gcpoauth2client.NewDetector(), "googleusercontent gocspx-"},
	{gcshmackey.NewDetector(), ""},
	{bitbucket.NewDetector(), "bitbucket.org/"},
	{codecatalyst.NewDetector(), "codecatalyst.aws/"},
	{codecommit.NewDetector(), ""},
	{github.NewAppRefreshTokenDetector(), ""},
	{github.NewAppS2STokenDetector(), ""},
	{github.NewAppU2SDetector(), ""},
	{github.NewClassicPATDetector(), ""},
	{github.NewFineGrainedPATDetector(), ""},
	{github.NewOAuthTokenDetector(), ""},
	{gitlabpat.NewDetector(), ""},
	{grokxaiapikey.NewAPIKeyDetector(), ""},
	{grokxaiapikey.NewManagementKeyDetector(), ""},
	{hashicorpvault.NewAppRoleDetector(), "role_id role-id roleid secret_id secret-id secretid"},
	{hashicorpvault.NewTokenDetector(), "vault hvs. hvb."},
	{hcp.NewAccessTokenDetector(), ""},
	{hcp.NewPairDetector(), "hcp_client"},
	{herokuplatformkey.NewSecretKeyDetector(), "hrku-"},
	{huggingfaceapikey.NewDetector(), ""},
	{jwt.NewDetector(), ""},
	{mistralapikey.NewDetector(), "mistral"},
	{npmjsaccesstoken.NewDetector(), ""},
	{onepasswordkeys.NewRecoveryTokenDetector(), ""},
	{onepasswordkeys.NewSecretKeyDetector(), ""},
	{onepasswordkeys.NewServiceTokenDetector(), ""},
	{openai.NewDetector(), ""},
	{openrouter.NewDetector(), ""},
	{packagist.NewAPISecretDetector(), ""},
	{packagist.NewConductorUpdateTokenDetector(), ""},
	{packagist.NewOrgReadTokenDetector(), ""},
	{packagist.NewOrgUpdateTokenDetector(), ""},
	{packagist.NewUserUpdateTokenDetector(), "packagist_"},
	{paystacksecretkey.NewSecretKeyDetector(), "sk_"},
	{perplexityapikey.NewDetector(), ""},
	{postmanapikey.NewAPIKeyDetector(), ""},
	{postmanapikey.NewCollectionTokenDetector(), ""},
	{pypiapitoken.NewDetector(), ""},
	{pyxkeyv1.NewDetector(), ""},
	{pyxkeyv2.NewDetector(), ""},
	{recaptchakey.NewDetector(), "captcha"},
	{rubygemsapikey.NewDetector(), ""},
	{salesforceoauth2access.NewDetector(), "00d"},
	{salesforceoauth2client.NewDetector(), "3mvg"},
	{salesforceoauth2jwt.NewDetector(), "3mvg"},
	{salesforceoauth2refresh.NewDetector(), "3mvg"},
	{sendgrid.NewDetector(), ""},
	{slacktoken.NewAppConfigAccessTokenDetector(), ""},
	{slacktoken.NewAppConfigRefreshTokenDetector(), ""},
	{slacktoken.NewAppLevelTokenDetector(), ""},
	{squareapikey.NewOAuthApplicationSecretDetector(), ""},
	{squareapikey.NewPersonalAccessTokenDetector(), ""},
	{stripeapikeys.NewRestrictedKeyDetector(), ""},
	{stripeapikeys.NewSecretKeyDetector(), ""},
	{stripeapikeys.NewWebhookSecretDetector(), ""},
	{supabase.NewPATDetector(), ""},
	{supabase.NewProjectSecretKeyDetector(), ""},
	{supabase.NewServiceRoleJWTDetector(), ""},
	{telegrambotapitoken.NewDetector(), "telegram tgram"},
	{tinkkeyset.NewDetector(), "primarykeyid"},
	{urlcreds.NewDetector(), "://"},
	{vapid.NewDetector(), "vapid"},
}

// secrets returns what finds secrets, or nil if redact is not set.
func secrets(redact bool) importer.Secrets {
	if !redact {
		return nil
	}
	return findSecrets
}

// privateKey matches a private key in the text form of RFC 7468, also one that has no end, or whose lines have line
// numbers or signs of a diff before them.
var privateKey = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----([^\x00]*?-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|[A-Za-z0-9+/=\s\\]*)`)

func findSecrets(text string) (found []importer.Secret) {
	data, small := []byte(text), strings.ToLower(text)
	if strings.Contains(small, "private key") {
		for _, key := range privateKey.FindAllString(text, -1) {
			found = append(found, importer.Secret{Rule: "private key", Text: key})
		}
	}
	for _, d := range detectors {
		if d.words != "" && !hasOne(small, d.words) {
			continue
		}
		all, at := d.Detect(data)
		for i, s := range all {
			found = append(found, secretTexts(s, text, at[i])...)
		}
	}
	return found
}

// hasOne reports whether a text has one of the words.
func hasOne(text, words string) bool {
	for w := range strings.FieldsSeq(words) {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// secretTexts returns what is secret in the fields of a secret, if it is in the text. Of the address of a server that is
// the password. A secret that has no such field is the word at which it was found.
func secretTexts(secret veles.Secret, text string, at int) (out []importer.Secret) {
	const shortest = 8 // of a field that is no name of a region, a user or the like
	rule, known := fmt.Sprintf("%T", secret), false
	v := reflect.Indirect(reflect.ValueOf(secret))
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() != reflect.String || f.Len() < shortest || !strings.Contains(text, f.String()) {
			continue
		}
		known = true
		if u, err := url.Parse(f.String()); err == nil && u.User != nil && u.Host != "" {
			_, rest, _ := strings.Cut(f.String(), "://")
			user, _, _ := strings.Cut(rest, "@")
			if _, password, ok := strings.Cut(user, ":"); ok {
				out = append(out, importer.Secret{Rule: rule, Text: ":" + password + "@"})
			}
			continue
		}
		out = append(out, importer.Secret{Rule: rule, Text: f.String()})
	}
	if !known && at < len(text) {
		word := text[at:]
		if i := strings.IndexAny(word, " \n\t\"'\\\x00"); i >= 0 {
			word = word[:i]
		}
		out = append(out, importer.Secret{Rule: rule, Text: word})
	}
	return out
}
