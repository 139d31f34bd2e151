package palisade

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// socketOn reads a WebSocket from bytes.
func socketOn(stream []byte) *ws { return &ws{reader: bufio.NewReader(bytes.NewReader(stream))} }

func join(parts ...any) []byte {
	var out []byte
	for _, part := range parts {
		switch part := part.(type) {
		case int:
			out = append(out, byte(part))
		case string:
			out = append(out, part...)
		case []byte:
			out = append(out, part...)
		}
	}
	return out
}

func TestMessagesAreRead(t *testing.T) {
	long := strings.Repeat("x", 126)
	huge := strings.Repeat("y", 0x10000)
	for name, c := range map[string]struct {
		stream []byte
		want   string
	}{
		"one frame":              {join(0x81, 2, "hi"), "hi"},
		"an empty message":       {join(0x81, 0), ""},
		"two bytes of length":    {join(0x81, 126, 0, 126, long), long},
		"eight bytes of length":  {join(0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0, huge), huge},
		"fragments":              {join(0x01, 1, "h", 0x00, 0, 0x80, 1, "i"), "hi"},
		"a character in two":     {join(0x01, 1, 0xC3, 0x80, 1, 0xA9), "é"},
		"a message of full size": {join(0x81, 127, 0, 0, 0, 0, 0, 4, 0, 0, make([]byte, maxMessage)), string(make([]byte, maxMessage))},
	} {
		op, got, err := socketOn(c.stream).read()
		if err != nil || op != opText || string(got) != c.want {
			t.Errorf("%s: read %d, %d bytes, %v", name, op, len(got), err)
		}
	}
}

func TestControlFramesMayComeBetweenFragments(t *testing.T) {
	socket := socketOn(join(0x01, 1, "h", 0x89, 1, "p", 0x8A, 0, 0x80, 1, "i", 0x88, 5, 3, 0xE8, "bye"))
	for _, want := range []struct {
		op   opcode
		text string
	}{{opPing, "p"}, {opPong, ""}, {opText, "hi"}} {
		if op, text, err := socket.read(); op != want.op || string(text) != want.text || err != nil {
			t.Fatalf("read %d %q %v", op, text, err)
		}
	}
	var closed *closedError
	if _, _, err := socket.read(); !errors.As(err, &closed) || closed.code != 1000 || closed.reason != "bye" {
		t.Fatalf("read %v", err)
	}
}

func TestBrokenFramesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		code   int
		stream []byte
	}{
		"a reserved bit":                {1002, join(0xC1, 0)},
		"another reserved bit":          {1002, join(0x91, 0)},
		"an unknown opcode":             {1002, join(0x83, 0)},
		"an unknown control opcode":     {1002, join(0x8B, 0)},
		"a masked frame":                {1002, join(0x81, 0x81, 0, 0, 0, 0, "x")},
		"a fragmented ping":             {1002, join(0x09, 0)},
		"a long ping":                   {1002, join(0x89, 126, 0, 126, make([]byte, 126))},
		"a continuation of nothing":     {1002, join(0x80, 1, "x")},
		"a continuation after the end":  {1002, join(0x01, 0, 0x80, 0, 0x80, 0)},
		"a message in a message":        {1002, join(0x01, 1, "x", 0x81, 1, "y")},
		"a long form of a short length": {1002, join(0x81, 126, 0, 125, make([]byte, 125))},
		"eight bytes for two":           {1002, join(0x81, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF)},
		"a negative length":             {1002, join(0x81, 127, 0x80, 0, 0, 0, 0, 0, 0, 0)},
		"a binary message":              {1003, join(0x82, 1, "x")},
		"no UTF-8":                      {1007, join(0x81, 1, 0xFF)},
		"half a character":              {1007, join(0x01, 1, 0xC3, 0x80, 0)},
		"a message that is too long":    {1009, join(0x81, 127, 0, 0, 0, 0, 0, 4, 0, 1)},
		"fragments that are too long":   {1009, join(0x01, 1, "x", 0x80, 127, 0, 0, 0, 0, 0, 4, 0, 0)},
		"a length of 2^63 - 1":          {1009, join(0x81, 127, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF)},
		"half a code":                   {1002, join(0x88, 1, 3)},
		"a reserved code":               {1002, join(0x88, 2, 3, 0xED)},
		"a code below 1000":             {1002, join(0x88, 2, 3, 0xE7)},
		"a reason that is not UTF-8":    {1007, join(0x88, 3, 3, 0xE8, 0xFF)},
	} {
		socket := socketOn(c.stream)
		var err error
		for err == nil {
			_, _, err = socket.read()
		}
		var broken *wsError
		if !errors.As(err, &broken) || broken.code != c.code {
			t.Errorf("%s: %v, and not an error with the code %d", name, err, c.code)
		}
	}
}

func TestAStreamThatEndsIsAnError(t *testing.T) {
	whole := join(0x01, 126, 0, 126, make([]byte, 126), 0x80, 127, 0, 0, 0, 0, 0, 1, 0, 0, make([]byte, 0x10000))
	for _, length := range []int{0, 1, 2, 3, 4, 100, 130, 131, 135, 140, 1000, len(whole) - 1} {
		if _, _, err := socketOn(whole[:length]).read(); err != io.EOF && err != io.ErrUnexpectedEOF {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

func TestFramesAreMasked(t *testing.T) {
	for _, length := range []int{0, 1, 125, 126, 0xFFFF, 0x10000} {
		payload := bytes.Repeat([]byte("abc"), length)[:length]
		mask := [4]byte{1, 2, 3, 4}
		out := encodeFrame(opText, payload, mask)
		// The server's side: the length without the bit of the mask, and the payload without the mask.
		if out[0] != 0x81 || out[1]&0x80 == 0 {
			t.Fatalf("%d bytes: the frame begins with %x", length, out[:2])
		}
		head := 2
		switch out[1] & 0x7F {
		case 126:
			head = 4
			if got := int(binary.BigEndian.Uint16(out[2:])); got != length {
				t.Fatalf("%d bytes: the length is %d", length, got)
			}
		case 127:
			head = 10
			if got := int(binary.BigEndian.Uint64(out[2:])); got != length {
				t.Fatalf("%d bytes: the length is %d", length, got)
			}
		}
		if !bytes.Equal(out[head:head+4], mask[:]) || len(out) != head+4+length {
			t.Fatalf("%d bytes: the frame has %d", length, len(out))
		}
		for i := range payload {
			if out[head+4+i]^mask[i%4] != payload[i] {
				t.Fatalf("%d bytes: byte %d is wrong", length, i)
			}
		}
	}
}

// sink keeps what is written to a connection.
type sink struct {
	net.Conn
	written bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) { return s.written.Write(p) }

func TestEachFrameHasAMaskOfItsOwn(t *testing.T) {
	out := &sink{}
	socket := &ws{conn: out}
	masks := map[string]bool{}
	for i := 0; i < 32; i++ {
		out.written.Reset()
		if err := socket.write(opPong, []byte("x")); err != nil {
			t.Fatal(err)
		}
		masks[string(out.written.Bytes()[2:6])] = true
	}
	if len(masks) < 30 {
		t.Fatalf("32 frames have %d masks", len(masks))
	}
}

func TestTheAcceptOfTheStandard(t *testing.T) {
	// The example of RFC 6455, section 1.3.
	if got := acceptFor("dGhlIHNhbXBsZSBub25jZQ=="); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatal(got)
	}
}

// answer lets a server answer an upgrade with a text, in which KEY stands for the right accept.
func answer(t *testing.T, text string) (*ws, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		defer theirs.Close()
		request, err := http.ReadRequest(bufio.NewReader(theirs))
		if err != nil {
			return
		}
		accept := acceptFor(request.Header.Get("Sec-WebSocket-Key"))
		_, _ = io.WriteString(theirs, strings.ReplaceAll(text, "KEY", accept))
	}()
	_ = ours.SetDeadline(time.Now().Add(20 * time.Second))
	return upgrade(ours, "a:1", "/v1/hold", http.Header{"Authorization": {"Bearer x"}})
}

const switching = "HTTP/1.1 101 Switching Protocols\r\n"

func TestHandshakesAreChecked(t *testing.T) {
	good := switching + "Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Accept: KEY\r\n"
	if _, err := answer(t, good+"\r\n"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"no accept":           switching + "Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
		"another accept":      strings.Replace(good, "KEY", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", 1) + "\r\n",
		"another protocol":    strings.Replace(good, "WebSocket\r", "h2c\r", 1) + "\r\n",
		"no connection field": strings.Replace(good, "Connection", "X", 1) + "\r\n",
		"an extension":        good + "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
		"a subprotocol":       good + "Sec-WebSocket-Protocol: x\r\n\r\n",
		"no HTTP":             "SSH-2.0-OpenSSH\r\n\r\n",
		"nothing":             "",
		"an endless head":     switching + strings.Repeat("X-Y: z\r\n", maxHead),
		"an endless line":     switching + "X-Y: " + strings.Repeat("z", 2*maxHead),
	} {
		if _, err := answer(t, text); err == nil {
			t.Errorf("%s: the handshake is accepted", name)
		}
	}
}

func TestARefusalOfTheUpgradeIsRead(t *testing.T) {
	_, err := answer(t, "HTTP/1.1 307 x\r\nLocation: http://b:1/v1/hold\r\nContent-Length: 2\r\n\r\n{}")
	var refusal *httpRefusal
	if !errors.As(err, &refusal) || refusal.status != 307 || string(refusal.body) != "{}" {
		t.Fatal(err)
	}
	c := &Client{}
	if f := c.failureOf(err); f.leader != "b:1" || f.refusal != nil {
		t.Fatalf("read %+v", f)
	}
	// A body without an end is read up to a limit.
	_, err = answer(t, "HTTP/1.1 500 x\r\n\r\n"+strings.Repeat("x", 3*maxHead))
	if !errors.As(err, &refusal) || len(refusal.body) > maxHead {
		t.Fatal(err)
	}
	if f := c.failureOf(err); f.refusal != nil {
		t.Fatalf("read %+v", f)
	}
}

func TestAddressesThatNoHostFieldMayHaveAreIgnored(t *testing.T) {
	for _, location := range []string{"http://", "/v1/hold", "::", "http://user@b:1/", "http://b/"} {
		err := fmt.Errorf("wrapped: %w", &httpRefusal{status: 307, location: location,
			body: []byte(`{"error":"not_leader","leader":{"client_addr":"b:1\r\nX: y"}}`)})
		if f := (&Client{}).failureOf(err); f.leader != "" && f.leader != "b:1" {
			t.Errorf("%s: the leader is %q", location, f.leader)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(join(0x01, 1, "h", 0x89, 1, "p", 0x80, 1, "i", 0x88, 2, 3, 0xE8))
	f.Add(join(0x81, 126, 0, 126, make([]byte, 126)))
	f.Fuzz(func(t *testing.T, stream []byte) {
		socket := socketOn(stream)
		for {
			_, message, err := socket.read()
			if err != nil {
				return
			}
			if len(message) > maxMessage {
				t.Fatalf("a message has %d bytes", len(message))
			}
		}
	})
}
