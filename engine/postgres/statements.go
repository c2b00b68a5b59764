package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/turnstonedb/turnstone/engine"
)

// A statement is SQL with what the protocol wants to know of it. Parameters and
// columns are binary. One without a name is not prepared.
type statement struct{ pgconn.StatementDescription }

func newStatement(columns int, sql string, params ...uint32) *statement {
	sum := sha256.Sum256([]byte(sql))
	s := once(sql)
	s.Name, s.ParamOIDs = "turnstone_"+hex.EncodeToString(sum[:8]), params
	for range columns {
		s.Fields = append(s.Fields, pgconn.FieldDescription{DataTypeOID: pgtype.ByteaOID, DataTypeSize: -1, TypeModifier: -1, Format: pgtype.BinaryFormatCode})
	}
	return s
}

// once returns a statement that is executed now and then, without parameters.
func once(sql string) *statement {
	return &statement{pgconn.StatementDescription{SQL: sql}}
}

var binaryFormat = []int16{pgtype.BinaryFormatCode} // of all parameters, or columns

// Those that are the same for all schemas.
var (
	beginRead    = newStatement(0, `BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY`)
	beginWrite   = newStatement(0, `BEGIN ISOLATION LEVEL SERIALIZABLE`)
	commit       = newStatement(0, `COMMIT`)
	schemaExists = newStatement(0, `SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1`, pgtype.TextOID)
	setConfig    = newStatement(0, `SELECT set_config(s.name, s.value, true) FROM unnest($1::text[], $2::text[]) AS s(name, value)`, pgtype.TextArrayOID, pgtype.TextArrayOID)
)

// statements are those of one schema.
type statements struct {
	version, get, scan, scanOpen, guards, inserts, insertsIf, sets, deletes *statement
	vacuum                                                                  string
}

func statementsOf(schema string) statements {
	t := pgx.Identifier{schema, "pairs"}.Sanitize()
	const one, all, number = pgtype.ByteaOID, pgtype.ByteaArrayOID, pgtype.Int8OID
	// A division by zero (22012) when a guard does not hold.
	guards := `1 / (CASE WHEN EXISTS (SELECT 1 FROM unnest($1::bytea[], $2::bytea[]) AS g(k, want) WHERE (SELECT p.v FROM ` + t +
		` AS p WHERE p.k = g.k) IS DISTINCT FROM g.want) THEN 0 ELSE 1 END)`
	// At most $2 pairs, and none after $3 bytes of values: the length of a value is
	// known without reading it.
	page := func(in string) string {
		return `SELECT k, v FROM (SELECT k, v, sum(octet_length(v)) OVER (ORDER BY k ROWS UNBOUNDED PRECEDING) - octet_length(v) AS before FROM` +
			` (SELECT p.k, p.v FROM ` + t + ` AS p WHERE ` + in + ` ORDER BY p.k LIMIT $2) AS bounded) AS sums WHERE before < $3 ORDER BY k`
	}
	return statements{
		version: newStatement(1, `SELECT convert_to(version::text, 'UTF8') FROM `+pgx.Identifier{schema, "meta"}.Sanitize()),
		// A subquery for each key, not a join: of a small table a join would read all,
		// and a plan that is made then stays.
		get:      newStatement(1, `SELECT (SELECT p.v FROM `+t+` AS p WHERE p.k = q.k) FROM unnest($1::bytea[]) WITH ORDINALITY AS q(k, i) ORDER BY q.i`, all),
		scan:     newStatement(2, page(`p.k >= $1 AND p.k < $4`), one, number, number, one),
		scanOpen: newStatement(2, page(`p.k >= $1`), one, number, number),
		guards:   newStatement(1, `SELECT `+guards, all, all),
		inserts:  newStatement(0, `INSERT INTO `+t+` (k, v) SELECT * FROM unnest($1::bytea[], $2::bytea[])`, all, all),
		// The condition is evaluated once: a twentieth less work for a commit than two statements.
		insertsIf: newStatement(0, `INSERT INTO `+t+` (k, v) SELECT * FROM unnest($3::bytea[], $4::bytea[]) WHERE `+guards+` = 1`, all, all, all, all),
		sets:      newStatement(0, `INSERT INTO `+t+` (k, v) SELECT * FROM unnest($1::bytea[], $2::bytea[]) ON CONFLICT (k) DO UPDATE SET v = excluded.v`, all, all),
		deletes:   newStatement(0, `DELETE FROM `+t+` WHERE k = ANY($1::bytea[])`, all),
		vacuum:    `VACUUM ` + t,
	}
}

// array encodes a one-dimensional array of n byte strings as the server's
// array_recv reads it: dimensions, whether there are nulls, the type of the
// elements, and for each dimension its length and first index; then for each
// element its length, or -1 for null, and its bytes.
func array(element uint32, n int, value func(i int) []byte) []byte {
	size, nulls := 20, uint32(0)
	for i := range n {
		v := value(i)
		size += 4 + len(v)
		if v == nil {
			nulls = 1
		}
	}
	out := make([]byte, 0, size)
	for _, head := range []uint32{1, nulls, element, uint32(n), 1} {
		out = binary.BigEndian.AppendUint32(out, head)
	}
	for i := range n {
		v := value(i)
		length := int32(len(v))
		if v == nil {
			length = -1
		}
		out = append(binary.BigEndian.AppendUint32(out, uint32(length)), v...)
	}
	return out
}

func keysArray(keys [][]byte) []byte {
	return array(pgtype.ByteaOID, len(keys), func(i int) []byte { return keys[i] })
}

// pairArrays returns the keys and the values.
func pairArrays(pairs []engine.Pair) (keys, values []byte) {
	return array(pgtype.ByteaOID, len(pairs), func(i int) []byte { return pairs[i].Key }),
		array(pgtype.ByteaOID, len(pairs), func(i int) []byte { return pairs[i].Value })
}

func number(n int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
