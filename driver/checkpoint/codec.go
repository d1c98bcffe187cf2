// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// CorruptError says why a file is no checkpoint. The file itself is untouched.
type CorruptError struct {
	Path   string
	Reason error
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("reading checkpoint %q: %v", e.Path, e.Reason)
}

// Unwrap implements errors.Unwrap.
func (e *CorruptError) Unwrap() error { return e.Reason }

// envelope is the outer object of the file.
type envelope struct {
	APIVersion string          `json:"apiVersion"`
	Checksum   string          `json:"checksum"`
	Data       json.RawMessage `json:"data"`
}

// Encode writes the file's content.
func Encode(d *Document) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("encoding checkpoint: %w", err)
	}
	data, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encoding checkpoint: %w", err)
	}
	out, err := json.Marshal(envelope{APIVersion: APIVersion, Checksum: checksum(data), Data: data})
	if err != nil {
		return nil, fmt.Errorf("encoding checkpoint: %w", err)
	}
	return append(out, '\n'), nil
}

// Decode reads a file's content. Errors say what is wrong with it.
func Decode(content []byte) (*Document, error) {
	var outer envelope
	decoder := json.NewDecoder(bytes.NewReader(content))
	if err := decoder.Decode(&outer); err != nil {
		return nil, fmt.Errorf("decoding the document: %w", err)
	}
	if rest, err := io.ReadAll(decoder.Buffered()); err != nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%d bytes follow the document", len(rest))
	}
	if outer.APIVersion != APIVersion {
		return nil, fmt.Errorf("apiVersion is %q, this version of the driver reads %q", outer.APIVersion, APIVersion)
	}
	if sum := checksum(outer.Data); sum != outer.Checksum {
		return nil, fmt.Errorf("checksum is %q, the content has %q", outer.Checksum, sum)
	}
	document := &Document{}
	if err := json.Unmarshal(outer.Data, document); err != nil {
		return nil, fmt.Errorf("decoding the data: %w", err)
	}
	if document.Claims == nil {
		document.Claims = map[types.UID]*Claim{}
	}
	if err := document.Validate(); err != nil {
		return nil, err
	}
	return document, nil
}

// checksum of the data's bytes.
func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// plainDocument and plainClaim have the fields, but not the methods.
type (
	plainDocument Document
	plainClaim    Claim
)

// MarshalJSON writes known and unknown fields.
func (d *Document) MarshalJSON() ([]byte, error) {
	return marshalWith((*plainDocument)(d), d.unknown)
}

// UnmarshalJSON keeps fields that it does not know.
func (d *Document) UnmarshalJSON(data []byte) (err error) {
	d.unknown, err = unmarshalWith(data, (*plainDocument)(d))
	return err
}

// MarshalJSON writes known and unknown fields.
func (c *Claim) MarshalJSON() ([]byte, error) {
	return marshalWith((*plainClaim)(c), c.unknown)
}

// UnmarshalJSON keeps fields that it does not know.
func (c *Claim) UnmarshalJSON(data []byte) (err error) {
	c.unknown, err = unmarshalWith(data, (*plainClaim)(c))
	return err
}

// marshalWith encodes known and adds the unknown fields, with keys in order.
func marshalWith(known any, unknown map[string]json.RawMessage) ([]byte, error) {
	data, err := json.Marshal(known)
	if err != nil || len(unknown) == 0 {
		return data, err
	}
	fields := maps.Clone(unknown)
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// unmarshalWith decodes into known and returns the fields that it lacks.
func unmarshalWith(data []byte, known any) (map[string]json.RawMessage, error) {
	if err := json.Unmarshal(data, known); err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	for member := range reflect.TypeOf(known).Elem().Fields() {
		name, _, _ := strings.Cut(member.Tag.Get("json"), ",")
		// encoding/json matches names in any case, so the copy has to go, too.
		maps.DeleteFunc(fields, func(field string, _ json.RawMessage) bool { return strings.EqualFold(field, name) })
	}
	if len(fields) == 0 {
		return nil, nil
	}
	return fields, nil
}
