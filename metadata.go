package turnstone

import "github.com/turnstonedb/turnstone/internal/lifecycle"

// A Field names a field of Metadata, for SaveMetadata to unset.
type Field string

// The fields of Metadata.
const (
	FieldName      Field = "name"
	FieldModel     Field = "model"
	FieldCwd       Field = "cwd"
	FieldRetention Field = "retention"
	FieldLabels    Field = "labels" // all of them
)

var emptied = map[Field]lifecycle.Field{
	FieldName: lifecycle.Name, FieldModel: lifecycle.Model, FieldCwd: lifecycle.Cwd, FieldRetention: lifecycle.Keep, FieldLabels: lifecycle.Labels,
}

// Check returns an *InvalidError if f names no field.
func (f Field) Check() error {
	if _, known := emptied[f]; known {
		return nil
	}
	return invalid("metadata", "no field is called %q", string(f))
}
