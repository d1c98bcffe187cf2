// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ParseTopologyAnnotation reads the value of AnnotationTopology. It says the
// same as TopologyConfig in one line, the policy first:
//
//	Preferred
//	None
//	Required,level=NVLink,minGBps=50
//	Preferred,communicates=false
//
// Spaces around commas and equals signs are ignored. Names and values are
// case-sensitive, every name may occur once, and whatever TopologyConfig
// forbids is forbidden here. Errors name the part that is wrong.
func ParseTopologyAnnotation(value string) (*TopologyConfig, error) {
	parts := strings.Split(value, ",")
	config := &TopologyConfig{Policy: Policy(strings.TrimSpace(parts[0]))}
	seen := map[string]bool{}
	for _, part := range parts[1:] {
		name, text, found := strings.Cut(part, "=")
		name, text = strings.TrimSpace(name), strings.TrimSpace(text)
		if !found {
			return nil, annotationError(fmt.Errorf("part %q is not of the form name=value", strings.TrimSpace(part)))
		}
		if seen[name] {
			return nil, annotationError(fmt.Errorf("%q is there twice", name))
		}
		seen[name] = true
		if err := config.setFromText(name, text); err != nil {
			return nil, annotationError(err)
		}
	}
	if err := config.Validate(nil).ToAggregate(); err != nil {
		return nil, annotationError(err)
	}
	return config, nil
}

// annotationError adds which annotation is meant.
func annotationError(err error) error {
	return fmt.Errorf("parsing annotation %q: %w", AnnotationTopology, err)
}

// setFromText sets the field that the annotation calls name.
func (t *TopologyConfig) setFromText(name, text string) error {
	if text == "" {
		return fmt.Errorf("%q has no value", name)
	}
	switch name {
	case "level":
		t.Level = Level(text)
	case "minGBps":
		parsed, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return field.Invalid(field.NewPath("minGBps"), text, "must be a whole number of gigabytes per second")
		}
		t.MinGBps = int32(parsed)
	case "communicates":
		switch text {
		case "true", "false":
			communicates := text == "true"
			t.Communicates = &communicates
		default:
			return field.NotSupported(field.NewPath("communicates"), text, []string{"true", "false"})
		}
	default:
		return errors.New(strconv.Quote(name) + ` is unknown; known are "level", "minGBps" and "communicates"`)
	}
	return nil
}

// FormatTopologyAnnotation writes the value that ParseTopologyAnnotation reads
// back as config.
func FormatTopologyAnnotation(config *TopologyConfig) string {
	var b strings.Builder
	b.WriteString(string(config.Policy))
	if config.Level != LevelAny {
		b.WriteString(",level=" + string(config.Level))
	}
	if config.MinGBps != 0 {
		b.WriteString(",minGBps=" + strconv.FormatInt(int64(config.MinGBps), 10))
	}
	if config.Communicates != nil {
		b.WriteString(",communicates=" + strconv.FormatBool(*config.Communicates))
	}
	return b.String()
}
