package sealed

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/tink-crypto/tink-go/v2/core/cryptofmt"
	"github.com/tink-crypto/tink-go/v2/daead"
	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	tinkkeys "github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/turnstonedb/turnstone/internal/codec"
)

// A keyset has the keys of a namespace.
type keyset struct {
	names  codec.Keyed // the secret of all hashes in stored keys
	handle *tinkkeys.Handle
	newest uint32                 // id of the newest key
	ids    []uint32               // of all keys
	opens  tink.DeterministicAEAD // decrypts with all keys
}

func bytesOf(h *tinkkeys.Handle) ([]byte, error) {
	var b bytes.Buffer
	err := insecurecleartextkeyset.Write(h, tinkkeys.NewBinaryWriter(&b)) // The file is encrypted as a whole.
	return b.Bytes(), err
}

func (e *entry) handle() (*tinkkeys.Handle, error) {
	return insecurecleartextkeyset.Read(tinkkeys.NewBinaryReader(bytes.NewReader(e.Keys)))
}

// idSize is the length of the prefix that Tink gives a value: a byte that is always the same, and the id of the key.
const idSize = cryptofmt.TinkPrefixSize

// keyOf returns the id of the key with which a value is encrypted, if the value begins as Tink has it.
func keyOf(value []byte) (id uint32, ok bool) {
	if len(value) < idSize || value[0] != cryptofmt.TinkStartByte {
		return 0, false
	}
	return binary.BigEndian.Uint32(value[1:]), true
}

func (s *keyset) has(id uint32) bool { return slices.Contains(s.ids, id) }

// knows reports whether the keyset has the key of a value, or the value has none, because it is damaged.
func (s *keyset) knows(value []byte) bool {
	id, ok := keyOf(value)
	return !ok || s.has(id)
}

// sealing returns what encrypts with the key of an id.
func (s *keyset) sealing(id uint32) (tink.DeterministicAEAD, error) {
	m := tinkkeys.NewManagerFromHandle(s.handle)
	if err := m.SetPrimary(id); err != nil {
		return nil, err
	}
	h, err := m.Handle()
	if err != nil {
		return nil, err
	}
	return daead.New(h)
}
