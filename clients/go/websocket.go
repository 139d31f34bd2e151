package palisade

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

// A WebSocket client (RFC 6455), as much of it as the hold protocol needs: text messages, no extension. It is strict
// with what the server sends, and everything that the server can make it keep has a limit.

const (
	// maxHead bounds the head of the server's answer to the upgrade, and the body of a refusal, in bytes.
	maxHead = 32 << 10
	// maxMessage bounds a message of the server, in bytes. The longest is a grant with 32 keys and signed tokens.
	maxMessage = 256 << 10
	// maxControl is the longest payload of a control frame (section 5.5).
	maxControl = 125
)

type opcode byte

const (
	opContinuation opcode = 0x0
	opText         opcode = 0x1
	opBinary       opcode = 0x2
	opClose        opcode = 0x8
	opPing         opcode = 0x9
	opPong         opcode = 0xA
)

func (o opcode) control() bool { return o&0x8 != 0 }

// Codes of Close frames (section 7.4.1).
const (
	closeNormal   = 1000
	closeProtocol = 1002
	closeNotText  = 1003
	closeNotUTF8  = 1007
	closeTooBig   = 1009
)

// wsError says how the server broke the protocol, with the code to tell it in the Close frame.
type wsError struct {
	code int
	text string
}

func (w *wsError) Error() string { return "WebSocket: " + w.text }

func violation(code int, format string, args ...any) error {
	return &wsError{code: code, text: fmt.Sprintf(format, args...)}
}

// closedError is the server's Close frame.
type closedError struct {
	code   int
	reason string
}

func (c *closedError) Error() string {
	return fmt.Sprintf("the server closed the WebSocket (%d %s)", c.code, c.reason)
}

// httpRefusal is an answer other than the WebSocket, or the status 200, that was asked for.
type httpRefusal struct {
	status   int
	location string
	path     string
	body     []byte
}

func (h *httpRefusal) Error() string {
	return fmt.Sprintf("the server answered %s with HTTP %d", h.path, h.status)
}

// ws is an open WebSocket. One goroutine may read while another one writes.
type ws struct {
	conn   net.Conn
	reader *bufio.Reader
	// buffer is the message that is being received, and fragmented whether its first frame has come.
	buffer     []byte
	fragmented bool
}

// tlsAlert is the first byte with which a node that requires TLS answers a request without it.
const tlsAlert = 0x15

var errTLSRequired = errors.New("the node requires TLS: set Options.TLS")

// upgrade opens a WebSocket over a connection. The caller sets the deadlines of the connection.
func upgrade(conn net.Conn, host, path string, header http.Header) (*ws, error) {
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	key := base64.StdEncoding.EncodeToString(nonce)
	request := &http.Request{Method: http.MethodGet, Host: host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	var head strings.Builder
	fmt.Fprintf(&head, "GET %s HTTP/1.1\r\nHost: %s\r\n", path, host)
	fields := header.Clone()
	if fields == nil {
		fields = http.Header{}
	}
	fields.Set("Upgrade", "websocket")
	fields.Set("Connection", "Upgrade")
	fields.Set("Sec-WebSocket-Key", key)
	fields.Set("Sec-WebSocket-Version", "13")
	if err := fields.Write(&head); err != nil {
		return nil, err
	}
	head.WriteString("\r\n")
	if _, err := io.WriteString(conn, head.String()); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: conn, N: maxHead}
	reader := bufio.NewReader(limited)
	if first, err := reader.Peek(1); err == nil && first[0] == tlsAlert {
		return nil, errTLSRequired
	}
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		if limited.N <= 0 {
			err = fmt.Errorf("the head of the server's answer is longer than %d bytes", maxHead)
		}
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxHead))
		return nil, &httpRefusal{response.StatusCode, response.Header.Get("Location"), path, body}
	}
	if err := checkUpgrade(response.Header, key); err != nil {
		return nil, err
	}
	limited.N = 1<<63 - 1
	return &ws{conn: conn, reader: reader}, nil
}

func checkUpgrade(header http.Header, key string) error {
	if !hasToken(header, "Upgrade", "websocket") || !hasToken(header, "Connection", "upgrade") {
		return violation(closeProtocol, "the server switched to another protocol")
	}
	if header.Get("Sec-WebSocket-Accept") != acceptFor(key) {
		return violation(closeProtocol, "the server did not answer this handshake: Sec-WebSocket-Accept is wrong")
	}
	if header.Get("Sec-WebSocket-Extensions") != "" || header.Get("Sec-WebSocket-Protocol") != "" {
		return violation(closeProtocol, "the server chose an extension or a protocol that was not offered")
	}
	return nil
}

func hasToken(header http.Header, name, token string) bool {
	for _, line := range header.Values(name) {
		for _, part := range strings.Split(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// acceptFor computes the server's answer to a key (section 4.2.2).
func acceptFor(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// read returns the next message, or control frame other than Close, whole. A Close frame is a *closedError, a broken
// frame a *wsError.
func (w *ws) read() (opcode, []byte, error) {
	for {
		op, final, payload, err := w.readFrame()
		if err != nil {
			return 0, nil, err
		}
		switch op {
		case opClose:
			return 0, nil, closeOf(payload)
		case opPing, opPong:
			return op, payload, nil
		case opBinary:
			return 0, nil, violation(closeNotText, "the server sent a binary message")
		case opText:
			if w.fragmented {
				return 0, nil, violation(closeProtocol, "a message begins before the one before it is complete")
			}
		case opContinuation:
			if !w.fragmented {
				return 0, nil, violation(closeProtocol, "a continuation without a beginning")
			}
		}
		w.buffer = append(w.buffer, payload...)
		w.fragmented = !final
		if final {
			message := w.buffer
			w.buffer = nil
			if !utf8.Valid(message) {
				return 0, nil, violation(closeNotUTF8, "a text message is not UTF-8")
			}
			return opText, message, nil
		}
	}
}

// readFrame reads a frame, and checks what can be checked without those before it.
func (w *ws) readFrame() (op opcode, final bool, payload []byte, err error) {
	var head [2]byte
	if _, err = io.ReadFull(w.reader, head[:]); err != nil {
		return
	}
	final, op = head[0]&0x80 != 0, opcode(head[0]&0x0F)
	switch {
	case head[0]&0x70 != 0:
		err = violation(closeProtocol, "a reserved bit is set, and no extension was agreed on")
	case op > opBinary && op < opClose || op > opPong:
		err = violation(closeProtocol, "a frame has the unknown opcode %d", op)
	case head[1]&0x80 != 0:
		err = violation(closeProtocol, "a frame of the server is masked")
	case op.control() && !final:
		err = violation(closeProtocol, "a control frame is fragmented")
	case op.control() && head[1] > maxControl:
		err = violation(closeProtocol, "a control frame is longer than %d bytes", maxControl)
	}
	if err != nil {
		return
	}
	length, err := w.readLength(head[1])
	if err != nil {
		return
	}
	if !op.control() && length > maxMessage-uint64(len(w.buffer)) {
		err = violation(closeTooBig, "a message is longer than %d bytes", maxMessage)
		return
	}
	payload = make([]byte, length)
	_, err = io.ReadFull(w.reader, payload)
	return
}

// readLength reads a payload's length, which must have its shortest form (section 5.2).
func (w *ws) readLength(short byte) (uint64, error) {
	var long [8]byte
	switch short {
	case 126:
		if _, err := io.ReadFull(w.reader, long[:2]); err != nil {
			return 0, err
		}
		if length := binary.BigEndian.Uint16(long[:2]); length > maxControl {
			return uint64(length), nil
		}
	case 127:
		if _, err := io.ReadFull(w.reader, long[:]); err != nil {
			return 0, err
		}
		if length := binary.BigEndian.Uint64(long[:]); length > 0xFFFF && length < 1<<63 {
			return length, nil
		}
	default:
		return uint64(short), nil
	}
	return 0, violation(closeProtocol, "the length of a frame does not have its shortest form")
}

func closeOf(payload []byte) error {
	if len(payload) == 0 {
		return &closedError{code: 1005, reason: "no code"}
	}
	if len(payload) == 1 {
		return violation(closeProtocol, "a Close frame has half a code")
	}
	code, reason := int(binary.BigEndian.Uint16(payload)), payload[2:]
	assigned := code >= 1000 && code <= 1014 && code != 1004 && code != 1005 && code != 1006
	if !assigned && (code < 3000 || code > 4999) {
		return violation(closeProtocol, "a Close frame has the invalid code %d", code)
	}
	if !utf8.Valid(reason) {
		return violation(closeNotUTF8, "the reason in a Close frame is not UTF-8")
	}
	return &closedError{code: code, reason: string(reason)}
}

// write sends a frame, masked with four bytes that the server cannot guess (section 5.3).
func (w *ws) write(op opcode, payload []byte) error {
	var mask [4]byte
	if _, err := rand.Read(mask[:]); err != nil {
		return err
	}
	_, err := w.conn.Write(encodeFrame(op, payload, mask))
	return err
}

func encodeFrame(op opcode, payload []byte, mask [4]byte) []byte {
	out := make([]byte, 0, len(payload)+14)
	out = append(out, 0x80|byte(op))
	switch length := len(payload); {
	case length <= maxControl:
		out = append(out, 0x80|byte(length))
	case length <= 0xFFFF:
		out = append(out, 0x80|126)
		out = binary.BigEndian.AppendUint16(out, uint16(length))
	default:
		out = append(out, 0x80|127)
		out = binary.BigEndian.AppendUint64(out, uint64(length))
	}
	out = append(out, mask[:]...)
	for i, b := range payload {
		out = append(out, b^mask[i%4])
	}
	return out
}

// farewell sends a Close frame, if the connection takes it at once, and closes the connection without waiting for the
// answer: the session does not depend on it.
func (w *ws) farewell(reason error) {
	code := closeNormal
	var broken *wsError
	if errors.As(reason, &broken) {
		code = broken.code
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_ = w.write(opClose, binary.BigEndian.AppendUint16(nil, uint16(code)))
	_ = w.conn.Close()
}
