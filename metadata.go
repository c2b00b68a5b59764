package turnstone

import "github.com/turnstonedb/turnstone/head"

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

// Check returns an *InvalidError if f names no field.
func (f Field) Check() error {
	switch f {
	case FieldName, FieldModel, FieldCwd, FieldRetention, FieldLabels:
		return nil
	}
	return invalid("metadata", "no field is called %q", string(f))
}

// unset empties fields of a.
func unset(a *head.About, fields []Field) {
	for _, f := range fields {
		switch f {
		case FieldName:
			a.Name = ""
		case FieldModel:
			a.Model = ""
		case FieldCwd:
			a.Cwd = ""
		case FieldRetention:
			a.Keep = 0
		case FieldLabels:
			a.Labels = nil
		}
	}
}
