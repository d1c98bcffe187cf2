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

	// Base is the checksum of the checkpoint that an intent is about. Only
	// intents have it.
	Base string `json:"base,omitempty"`
}

// Encode writes the file's content.
func Encode(d *Document) ([]byte, error) { return encode(d, "") }

// encodeIntent writes the content of an intent about a checkpoint with content
// base.
func encodeIntent(d *Document, base []byte) ([]byte, error) {
	return encode(d, fmt.Sprintf(",\"base\":%q", checksum(base)))
}

// isIntent says whether content is an intent about a checkpoint with content base.
func isIntent(content, base []byte) bool {
	var outer envelope
	return json.Unmarshal(content, &outer) == nil && outer.Base == checksum(base)
}

// encode writes an envelope with more fields at its end.
func encode(d *Document, more string) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("encoding checkpoint: %w", err)
	}
	data, err := encodeData(d)
	if err != nil {
		return nil, fmt.Errorf("encoding checkpoint: %w", err)
	}
	// As encoding/json writes an envelope, but without reading data again.
	return fmt.Appendf(nil, "{\"apiVersion\":%q,\"checksum\":%q,\"data\":%s%s}\n", APIVersion, checksum(data), data, more), nil
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
	document, err := decodeData(outer.Data)
	if err != nil {
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

// encodeData writes the document itself, with the fields that this version does
// not know. Most documents have none, and a node with many claims writes its
// document several times for each, so those are written as they are.
func encodeData(d *Document) ([]byte, error) {
	if !d.hasUnknown() {
		return json.Marshal(d)
	}
	bare := *d
	bare.Claims = nil
	fields, err := merge(&bare, d.unknown)
	if err != nil {
		return nil, err
	}
	claims := make(map[types.UID]map[string]json.RawMessage, len(d.Claims))
	for uid, claim := range d.Claims {
		if claims[uid], err = merge(claim, claim.unknown); err != nil {
			return nil, err
		}
	}
	if fields["claims"], err = json.Marshal(claims); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// hasUnknown says whether another version's fields have to be kept.
func (d *Document) hasUnknown() bool {
	for _, claim := range d.Claims {
		if len(claim.unknown) > 0 {
			return true
		}
	}
	return len(d.unknown) > 0
}

// merge returns the fields of known, which win, and the unknown ones.
func merge(known any, unknown map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	data, err := json.Marshal(known)
	if err != nil {
		return nil, err
	}
	fields := make(map[string]json.RawMessage, len(unknown))
	maps.Copy(fields, unknown)
	return fields, json.Unmarshal(data, &fields)
}

// decodeData reads the document itself and keeps the fields that this version
// does not know.
func decodeData(data []byte) (*Document, error) {
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	if document := (&Document{}); strict.Decode(document) == nil {
		return document, nil
	}
	// Something is unknown or wrong.
	document := &Document{}
	if err := json.Unmarshal(data, document); err != nil {
		return nil, err
	}
	var err error
	if document.unknown, err = unknownFields(data, document); err != nil {
		return nil, err
	}
	var raw struct {
		Claims map[types.UID]json.RawMessage `json:"claims"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, err
	}
	for uid, claim := range document.Claims {
		if claim == nil {
			continue // Validate says so.
		}
		if claim.unknown, err = unknownFields(raw.Claims[uid], claim); err != nil {
			return nil, err
		}
	}
	return document, nil
}

// unknownFields returns the fields of the JSON object that known, a pointer to a
// struct, lacks.
func unknownFields(data []byte, known any) (map[string]json.RawMessage, error) {
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

// checksum of the data's bytes.
func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
