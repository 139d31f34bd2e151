package palisade

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The messages of GET /v1/hold. Each is a JSON object with one key, its kind. The server refuses unknown fields, so a
// field without content is left out; the client ignores unknown kinds and fields, so that a newer server may add some.

const (
	minTTL = 100 * time.Millisecond
	maxTTL = 24 * time.Hour
	// maxSession bounds the session's credential, a UUID, which the client only repeats.
	maxSession = 128
	// maxValue bounds the value of a grant, in bytes.
	maxValue = 4096
)

// claim says what is asked for: the fields that acquire and resume have in common.
type claim struct {
	Key      string   `json:"key,omitempty"`
	Keys     []string `json:"keys,omitempty"`
	TTL      int64    `json:"ttl_ms"`
	Wait     int64    `json:"wait_ms"`
	Owner    string   `json:"owner,omitempty"`
	Mode     string   `json:"mode,omitempty"`
	Permits  uint32   `json:"permits,omitempty"`
	Of       uint32   `json:"of,omitempty"`
	MaxQueue uint32   `json:"max_queue,omitempty"`
	Value    *string  `json:"value,omitempty"`
}

type resumption struct {
	claim
	Session string `json:"session"`
	Token   uint64 `json:"token,omitempty"`
}

type proclamation struct {
	N     uint64 `json:"n"`
	Value string `json:"value"`
}

// frame encodes a message of the client.
func frame(kind string, content any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	// Escapes for HTML would make a value six times as long, and the frame longer than a server reads.
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(map[string]any{kind: content}); err != nil {
		// Strings and numbers always have a JSON form.
		panic(fmt.Sprintf("palisade: a message of the kind %q has no JSON form: %v", kind, err))
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}

// message is a message of the server. An unknown kind is decoded to its name alone.
type message struct {
	kind    string
	session string
	key     string
	keys    []string
	token   uint64
	ttl     time.Duration
	n       uint64
	hasN    bool
	signed  []string
	code    string
	text    string
	leader  string
	body    json.RawMessage
}

// content has the fields of all kinds.
type content struct {
	Session string          `json:"session"`
	Key     string          `json:"key"`
	Keys    []string        `json:"keys"`
	Token   uint64          `json:"token"`
	TTL     int64           `json:"ttl_ms"`
	N       *uint64         `json:"n"`
	Signed  json.RawMessage `json:"signed"`
	Error   string          `json:"error"`
	Message string          `json:"message"`
	Leader  *struct {
		Addr string `json:"client_addr"`
	} `json:"leader"`
}

// decode reads a message of the server. An error means that the server does not speak this protocol.
func decode(text []byte) (message, error) {
	var kinds map[string]json.RawMessage
	if err := json.Unmarshal(text, &kinds); err != nil {
		return message{}, fmt.Errorf("the server sent a frame that is no JSON object: %v", err)
	}
	if len(kinds) != 1 {
		return message{}, fmt.Errorf("the server sent a message with %d kinds in place of one", len(kinds))
	}
	for kind, body := range kinds {
		m := message{kind: kind}
		if err := m.fill(body); err != nil {
			return message{}, fmt.Errorf("the server sent a %q that the client cannot read: %v", kind, err)
		}
		return m, nil
	}
	panic("unreachable: the map has one entry")
}

func (m *message) fill(body json.RawMessage) error {
	switch m.kind {
	case "waiting", "granted", "check", "renewed", "proclaimed", "lost", "error", "interrupted":
	default:
		return nil
	}
	if first := bytes.TrimLeft(body, " \t\r\n"); len(first) == 0 || first[0] != '{' {
		return errors.New("it is no object")
	}
	var c content
	if err := json.Unmarshal(body, &c); err != nil {
		return err
	}
	m.session, m.key, m.keys, m.token = c.Session, c.Key, c.Keys, c.Token
	m.code, m.text, m.body = c.Error, c.Message, body
	if c.N != nil {
		m.n, m.hasN = *c.N, true
	}
	if c.Leader != nil {
		m.leader = c.Leader.Addr
	}
	return m.check(c)
}

// check verifies that the fields which the kind must have are there, and in their bounds.
func (m *message) check(c content) error {
	switch m.kind {
	case "waiting", "granted", "renewed":
		if c.TTL < 1 || c.TTL > maxTTL.Milliseconds() {
			return fmt.Errorf("ttl_ms is %d", c.TTL)
		}
		m.ttl = time.Duration(c.TTL) * time.Millisecond
	case "lost", "error", "interrupted":
		if c.Error == "" {
			return errors.New("error is missing")
		}
	}
	switch m.kind {
	case "waiting", "granted":
		if c.Session == "" || len(c.Session) > maxSession {
			return fmt.Errorf("session has %d bytes", len(c.Session))
		}
	case "check", "renewed", "proclaimed":
		if c.N == nil {
			return errors.New("n is missing")
		}
	}
	if m.kind == "granted" {
		if c.Token == 0 {
			return errors.New("token is missing")
		}
		return m.readSigned(c.Signed)
	}
	return nil
}

// readSigned reads the signed tokens of a grant: one text, or a list with one for each key.
func (m *message) readSigned(signed json.RawMessage) error {
	if len(signed) == 0 || string(signed) == "null" {
		return nil
	}
	var one string
	if json.Unmarshal(signed, &one) == nil {
		m.signed = []string{one}
		return nil
	}
	return json.Unmarshal(signed, &m.signed)
}
