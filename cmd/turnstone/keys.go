package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/sealed"
)

// Environment variables for --keys, and for what opens the keyring.
const (
	keysVariable           = "TURNSTONE_KEYS"
	passphraseVariable     = "TURNSTONE_KEYS_PASSPHRASE"
	passphraseFileVariable = "TURNSTONE_KEYS_PASSPHRASE_FILE"
	secretVariable         = "TURNSTONE_KEYS_SECRET"
)

func (a *app) keys() *cobra.Command {
	c := &cobra.Command{
		Use:   "keys",
		Short: "Make and change the keys of an encrypted store",
		Long: "Make and change a keyring: a file with the keys of a store, which is encrypted itself. Every command takes it with\n" +
			"--keys, or " + keysVariable + ". What opens it is a passphrase in " + passphraseVariable + " or in the file that\n" +
			passphraseFileVariable + " names, or 32 random bytes in base64 in " + secretVariable + ".\n\n" +
			"A store that is made with --keys is encrypted; `turnstone copy` makes an encrypted copy of another one. Without the keyring\n" +
			"nobody can read the store: keep a copy of it, apart from copies of the store.",
		Example: "turnstone keys create turnstone.keys\nturnstone copy store.pebble encrypted.pebble --keys turnstone.keys\nturnstone sessions --store encrypted.pebble --keys turnstone.keys",
		Args:    noSuchCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(
		a.keyring("create FILE", "Make a keyring with a key for a namespace", "It fails if there is a file of the name.", "created", sealed.CreateKeyring, (*sealed.Keyring).Add),
		a.keyring("add FILE", "Make a key for another namespace", "", "added", sealed.OpenKeyring, (*sealed.Keyring).Add),
		a.keyList(),
		a.keyring("rotate FILE", "Make a new key for a namespace, beside those that it has",
			"`turnstone reencrypt` encrypts the store with it, which goes on with the older key until then. If several machines\nhave the store open, give all of them the new file before that.",
			"rotated", sealed.OpenKeyring, (*sealed.Keyring).Rotate),
		a.keyring("destroy FILE", "Remove all keys of a namespace",
			"Nobody can read the namespace any more, nor any copy of it, unless there is another copy of the keyring. Stop the hosts\nbefore that.",
			"destroyed", sealed.OpenKeyring, (*sealed.Keyring).Destroy),
	)
	for _, below := range c.Commands() {
		if below.Name() == "destroy" {
			_ = below.MarkFlagRequired("namespace") // There is such a flag.
		}
	}
	return c
}

// keyring returns a command that opens, or makes, a keyring and changes it.
func (a *app) keyring(use, short, more, done string, open func(context.Context, string, sealed.Wrapper) (*sealed.Keyring, error), change func(*sealed.Keyring, context.Context, string) error) *cobra.Command {
	var namespace string
	c := &cobra.Command{
		Use: use, Short: short, Long: strings.TrimSpace(short + ". " + more), Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			by, err := wrapper()
			if err != nil {
				return err
			}
			ring, err := open(cmd.Context(), args[0], by)
			if err == nil {
				err = change(ring, cmd.Context(), namespace)
			}
			if err != nil {
				return err
			}
			p := printer{w: cmd.OutOrStdout()}
			p.printf("%-8s %s, namespace %q\n", done, args[0], namespace)
			return p.err
		},
	}
	c.Flags().StringVar(&namespace, "namespace", "", "the namespace; default the one that the other commands use")
	return c
}

func (a *app) keyList() *cobra.Command {
	return &cobra.Command{
		Use: "list FILE", Short: "List the namespaces that have a key", Long: "List the names of the namespaces that have a key, in quotes.", Args: cobra.ExactArgs(1),
		Example: "turnstone keys add turnstone.keys --namespace team\nturnstone keys list turnstone.keys",
		RunE: func(cmd *cobra.Command, args []string) error {
			by, err := wrapper()
			if err != nil {
				return err
			}
			ring, err := sealed.OpenKeyring(cmd.Context(), args[0], by)
			if err != nil {
				return err
			}
			names, err := ring.Namespaces(cmd.Context())
			p := printer{w: cmd.OutOrStdout()}
			for _, name := range names {
				p.printf("%q\n", name)
			}
			return errors.Join(err, p.err)
		},
	}
}

func (a *app) reencrypt() *cobra.Command {
	var namespace string
	var forget bool
	c := &cobra.Command{
		Use:   "reencrypt",
		Short: "Encrypt a store with the newest key of its keyring",
		Long: "Encrypt with the newest key of the keyring what is still encrypted with older ones, while other processes use the store.\n" +
			"After an interruption, the same command goes on.",
		Example: "turnstone keys rotate turnstone.keys\nturnstone reencrypt --forget --store encrypted.pebble --keys turnstone.keys",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.keyFile == "" {
				return usageError{fmt.Errorf("name the keyring with --keys, or in %s", keysVariable)}
			}
			in := *a
			in.options.Namespace = namespace
			return in.withEngine(cmd.Context(), true, func(_ *turnstone.Store, e engine.Engine) error {
				s, err := in.decrypted(cmd.Context(), e, namespace)
				if err != nil {
					return err
				}
				reencrypt := s.(*sealed.Engine).Reencrypt
				if forget {
					reencrypt = s.(*sealed.Engine).Forget
				}
				n, err := reencrypt(cmd.Context())
				p := printer{w: cmd.OutOrStdout()}
				p.printf("encrypted %s anew\n", plural(n, "value"))
				return errors.Join(err, p.err)
			})
		},
	}
	c.Flags().StringVar(&namespace, "namespace", "", "the namespace; default the one that the other commands use")
	c.Flags().BoolVar(&forget, "forget", false, "then remove the older keys: other stores, backups and bundles that are encrypted with them can't be read any more")
	return c
}

// wrapper returns what opens the keyring, from the environment.
func wrapper() (sealed.Wrapper, error) {
	var found []sealed.Wrapper
	if text, ok := os.LookupEnv(passphraseVariable); ok && text != "" {
		found = append(found, sealed.Passphrase(text))
	}
	if name := os.Getenv(passphraseFileVariable); name != "" {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", passphraseFileVariable, err)
		}
		line := strings.TrimRight(string(text), "\r\n")
		if line == "" {
			return nil, usageError{fmt.Errorf("%s: %s is empty", passphraseFileVariable, name)}
		}
		found = append(found, sealed.Passphrase(line))
	}
	if text := os.Getenv(secretVariable); text != "" {
		secret, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(secret) != 32 {
			return nil, usageError{fmt.Errorf("%s is not 32 bytes in base64", secretVariable)}
		}
		found = append(found, sealed.Key([32]byte(secret)))
	}
	if len(found) != 1 {
		return nil, usageError{fmt.Errorf("set one of %s, %s and %s, which opens the keyring", passphraseVariable, passphraseFileVariable, secretVariable)}
	}
	return found[0], nil
}

// ring opens the keyring, or returns nil if there is none.
func (a *app) ring(ctx context.Context) (*sealed.Keyring, error) {
	if a.keyFile == "" || a.openRing != nil {
		return a.openRing, nil
	}
	by, err := wrapper()
	if err == nil {
		a.openRing, err = sealed.OpenKeyring(ctx, a.keyFile, by)
	}
	return a.openRing, err
}

// decrypted returns what decrypts the namespace of an engine, or the engine if there is no keyring.
func (a *app) decrypted(ctx context.Context, e engine.Engine, namespace string) (engine.Engine, error) {
	ring, err := a.ring(ctx)
	if ring == nil || err != nil {
		return e, err
	}
	s, err := sealed.Open(ctx, e, ring, namespace)
	if errors.Is(err, sealed.ErrNotEncrypted) {
		return nil, fmt.Errorf("%w: `turnstone copy` makes an encrypted copy, and --keys \"\" opens the store as it is", err)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// encryptedBundle is what the file of an encrypted bundle begins with. The name of the stream follows, in hex.
const encryptedBundle = "turnstone encrypted bundle 1 "

const bundleNameSize = 32 // hex digits

// encrypting calls write with a writer that encrypts to w, or with w if there is no keyring.
func (a *app) encrypting(ctx context.Context, w io.Writer, write func(io.Writer) error) error {
	ring, err := a.ring(ctx)
	if err != nil {
		return err
	}
	if ring == nil {
		return write(w)
	}
	var name [bundleNameSize / 2]byte
	_, _ = rand.Read(name[:]) // never fails
	stream, err := ring.Stream(ctx, "", hex.EncodeToString(name[:]))
	if err != nil {
		return err
	}
	from, to := io.Pipe()
	var writing sync.WaitGroup
	writing.Go(func() { _ = to.CloseWithError(write(to)) })
	in := bufio.NewReader(stream.Encrypt(from))
	if _, err = in.Peek(1); err == nil { // Nothing is written for what can't be bundled.
		_, err = fmt.Fprintf(w, "%s%x\n", encryptedBundle, name)
	}
	if err == nil {
		_, err = io.Copy(w, in)
	}
	_ = from.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
	writing.Wait()
	return err
}

// decrypting returns a reader of a bundle, which may be encrypted.
func (a *app) decrypting(ctx context.Context, r io.Reader) (io.Reader, error) {
	in := bufio.NewReader(r)
	begin, err := in.Peek(len(encryptedBundle) + bundleNameSize + 1)
	if name, ok := bytes.CutPrefix(begin, []byte(encryptedBundle)); err == nil && ok {
		ring, err := a.ring(ctx)
		if err != nil {
			return nil, err
		}
		if ring == nil {
			return nil, usageError{fmt.Errorf("the bundle is encrypted: name the keyring with --keys, or in %s", keysVariable)}
		}
		stream, err := ring.Stream(ctx, "", string(name[:bundleNameSize]))
		if err != nil {
			return nil, err
		}
		if _, err := in.Discard(len(begin)); err != nil {
			return nil, err
		}
		return stream.Decrypt(0, -1, func(int64, int64) (io.ReadCloser, error) { return io.NopCloser(in), nil })
	}
	return in, nil
}
