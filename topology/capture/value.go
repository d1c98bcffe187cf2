// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// value is a part of a valid JSON document together with words that say which.
type value struct {
	at  string // "" for the whole document
	raw []byte
}

// document checks that the data is JSON and returns it as a value.
func document(data []byte) (value, error) {
	if !utf8.Valid(data) {
		return value{}, errors.New("decoding JSON: it is not valid UTF-8: convert it, for example with iconv")
	}
	var raw json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			before := data[:min(int(syntax.Offset), len(data))]
			line := bytes.Count(before, []byte("\n")) + 1
			column := len(before) - bytes.LastIndexByte(before, '\n') - 1
			return value{}, fmt.Errorf("decoding JSON: line %d, column %d: %w", line, max(column, 1), err)
		}
		return value{}, fmt.Errorf("decoding JSON: %w", err)
	}
	return value{raw: bytes.TrimSpace(raw)}, nil
}

func (v value) null() bool { return v.raw == nil || string(v.raw) == "null" }

// kind names what the value is.
func (v value) kind() string {
	switch {
	case v.null():
		return "null"
	case v.raw[0] == '"':
		return "a string"
	case v.raw[0] == '[':
		return "a list"
	case v.raw[0] == '{':
		return "an object"
	case v.raw[0] == 't' || v.raw[0] == 'f':
		return "true or false"
	default:
		return "a number"
	}
}

// failf returns an error that begins with the place of the value.
func (v value) failf(format string, args ...any) error {
	if v.at == "" {
		return fmt.Errorf(format, args...)
	}
	return fmt.Errorf("%s: %w", v.at, fmt.Errorf(format, args...))
}

func (v value) must(be string) error {
	if v.at == "" {
		return fmt.Errorf("it is %s, it must be %s", v.kind(), be)
	}
	return v.failf("%s where %s is expected", v.kind(), be)
}

// text reads a string; "" for null.
func (v value) text(example string) (string, error) {
	if v.null() {
		return "", nil
	}
	var s string
	if v.raw[0] != '"' || json.Unmarshal(v.raw, &s) != nil {
		return "", v.must(strings.TrimSpace("a string " + example))
	}
	return s, nil
}

// flag reads true or false; false for null.
func (v value) flag() (bool, error) {
	var b bool
	if !v.null() && json.Unmarshal(v.raw, &b) != nil {
		return false, v.must("true or false")
	}
	return b, nil
}

// number reads a number; 0 for null, infinity for one that is too large.
func (v value) number() (float64, error) {
	if v.null() {
		return 0, nil
	}
	if v.kind() != "a number" {
		return 0, v.must("a number")
	}
	f, err := strconv.ParseFloat(string(v.raw), 64)
	if err != nil {
		return math.Inf(1), nil //nolint:nilerr // the only error for a JSON number is the range
	}
	return f, nil
}

// list reads a list whose entries are called after the list and their number; nil for null.
func (v value) list(entry string) ([]value, error) {
	if v.null() {
		return nil, nil
	}
	var items []json.RawMessage
	if v.raw[0] != '[' || json.Unmarshal(v.raw, &items) != nil {
		return nil, v.must("a list")
	}
	out := make([]value, len(items))
	for i, raw := range items {
		out[i] = value{at: fmt.Sprintf("%s%s %d", v.at, entry, i), raw: raw}
	}
	return out, nil
}

// object reads an object. No key may appear twice, and none may differ from a known
// one in capital letters alone: it would be lost without a word.
func (v value) object(known ...string) (map[string]value, error) {
	if v.null() || v.raw[0] != '{' {
		return nil, v.must(`an object in braces, such as {"` + known[0] + `": …}`)
	}
	out := map[string]value{}
	decoder := json.NewDecoder(bytes.NewReader(v.raw))
	if _, err := decoder.Token(); err != nil {
		return nil, v.failf("reading an object: %w", err)
	}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, v.failf("reading a key: %w", err)
		}
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return nil, v.failf("reading an object: %w", err)
		}
		key := fmt.Sprint(token)
		if _, twice := out[key]; twice {
			return nil, v.failf("key %s appears twice", short(key))
		}
		for _, k := range known {
			if key != k && strings.EqualFold(key, k) {
				return nil, v.failf("key %s: write it as %q", short(key), k)
			}
		}
		at := key
		if v.at != "" {
			at = v.at + ": " + key
		}
		out[key] = value{at: at, raw: raw}
	}
	return out, nil
}

// maxShort is how much of a text an error repeats.
const maxShort = 40

// short quotes a text for an error, cut when it is long.
func short(text string) string {
	runes := 0
	for i := range text {
		if runes == maxShort {
			return strconv.Quote(text[:i]) + "…"
		}
		runes++
	}
	return strconv.Quote(text)
}
