package palisade

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// A node for the tests: each connection is served by a script. It has a WebSocket of its own, so that a mistake in the
// client's would not be made twice.
type node struct {
	t       *testing.T
	server  *httptest.Server
	scripts chan func(*peer)
	mu      sync.Mutex
	seen    []http.Header
	conns   []net.Conn
	running sync.WaitGroup
	stopped chan struct{}
	// http: the scripts serve other requests than those for a hold.
	http bool
}

// peer is a client, as a node sees it.
type peer struct {
	t       *testing.T
	node    *node
	writer  http.ResponseWriter
	request *http.Request
	conn    net.Conn
	reader  *bufio.Reader
}

// newNode starts a node whose connections are served by the scripts, in order. More connections are left unanswered.
func newNode(t *testing.T, scripts ...func(*peer)) *node {
	return startNode(t, false, scripts...)
}

// newHTTPNode starts a node whose scripts serve one request each.
func newHTTPNode(t *testing.T, scripts ...func(*peer)) *node {
	n := startNode(t, false, scripts...)
	n.http = true
	return n
}

func startNode(t *testing.T, secure bool, scripts ...func(*peer)) *node {
	n := &node{t: t, scripts: make(chan func(*peer), len(scripts)), stopped: make(chan struct{})}
	for _, script := range scripts {
		n.scripts <- script
	}
	n.server = httptest.NewUnstartedServer(http.HandlerFunc(n.serve))
	n.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		n.server.StartTLS()
	} else {
		n.server.Start()
	}
	t.Cleanup(func() {
		close(n.stopped)
		n.server.CloseClientConnections()
		n.server.Close()
		n.closeUpgraded()
		n.running.Wait()
		if left := len(n.scripts); left > 0 {
			t.Errorf("%d connections that the test expects were not made", left)
		}
	})
	return n
}

// closeUpgraded ends the scripts that still wait for their client.
func (n *node) closeUpgraded() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		_ = conn.Close()
	}
}

func (n *node) address() string { return n.server.Listener.Addr().String() }

func (n *node) serve(writer http.ResponseWriter, request *http.Request) {
	n.running.Add(1)
	defer n.running.Done()
	n.mu.Lock()
	n.seen = append(n.seen, request.Header.Clone())
	n.mu.Unlock()
	if !n.http && (request.URL.Path != "/v1/hold" || request.Method != http.MethodGet) {
		n.t.Errorf("the client asked for %s %s", request.Method, request.URL)
	}
	select {
	case script := <-n.scripts:
		p := &peer{t: n.t, node: n, writer: writer, request: request}
		script(p)
		p.close()
	default:
		<-n.stopped
	}
}

// headers are those of the requests so far.
func (n *node) headers() []http.Header {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]http.Header(nil), n.seen...)
}

// client makes a client of the nodes, and checks at the end of the test that it has left no goroutine behind.
func client(t *testing.T, options Options, nodes ...*node) *Client {
	t.Helper()
	var endpoints []string
	for _, n := range nodes {
		endpoints = append(endpoints, n.address())
	}
	return clientOf(t, options, strings.Join(endpoints, ","))
}

func clientOf(t *testing.T, options Options, endpoints string) *Client {
	t.Helper()
	c, err := NewClient(endpoints, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { noGoroutines(t) })
	return c
}

// noGoroutines fails the test if a goroutine of the client remains.
func noGoroutines(t *testing.T) {
	t.Helper()
	var left string
	for tries := 0; tries < 500; tries++ {
		stacks := make([]byte, 1<<20)
		left = ""
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "(*runner)") || strings.Contains(stack, "(*link)") || strings.Contains(stack, "(*Watcher)") {
				left += stack + "\n\n"
			}
		}
		if left == "" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the client has left goroutines behind:\n%s", left)
}

func (p *peer) upgrade() {
	conn, buffered, err := p.writer.(http.Hijacker).Hijack()
	if err != nil {
		p.t.Errorf("hijack: %v", err)
		return
	}
	p.conn, p.reader = conn, buffered.Reader
	p.node.mu.Lock()
	p.node.conns = append(p.node.conns, conn)
	p.node.mu.Unlock()
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", acceptFor(p.request.Header.Get("Sec-WebSocket-Key")))
}

func (p *peer) close() {
	if p.conn != nil {
		_ = p.conn.Close()
	}
}

// hang keeps the connection open, silent, until the test ends.
func (p *peer) hang() { <-p.node.stopped }

func (p *peer) raw(bytes ...byte) { _, _ = p.conn.Write(bytes) }

func (p *peer) sendFrame(first byte, payload []byte) {
	head := []byte{first, byte(len(payload))}
	if len(payload) > 125 {
		head = binary.BigEndian.AppendUint16([]byte{first, 126}, uint16(len(payload)))
	}
	_, _ = p.conn.Write(append(head, payload...))
}

func (p *peer) send(text string) { p.sendFrame(0x81, []byte(text)) }

// frame reads a frame of the client, which must be masked and whole. io.EOF stands for every end of the connection.
func (p *peer) frame() (byte, []byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(p.reader, head[:]); err != nil {
		return 0, nil, io.EOF
	}
	if head[0]&0xF0 != 0x80 || head[1]&0x80 == 0 {
		p.t.Errorf("the client sent a frame that begins with %x", head)
	}
	length := int(head[1] & 0x7F)
	if length == 126 {
		var long [2]byte
		_, _ = io.ReadFull(p.reader, long[:])
		length = int(binary.BigEndian.Uint16(long[:]))
	}
	masked := make([]byte, 4+length)
	if _, err := io.ReadFull(p.reader, masked); err != nil {
		return 0, nil, io.EOF
	}
	for i := range masked[4:] {
		masked[4+i] ^= masked[i%4]
	}
	return head[0] & 0x0F, masked[4:], nil
}

// next reads the next message of the client. "" stands for the end of the connection.
func (p *peer) next() (kind string, content json.RawMessage) {
	for {
		op, payload, err := p.frame()
		if err != nil || op == 8 {
			return "", nil
		}
		if op == 9 {
			p.sendFrame(0x8A, payload)
		}
		if op != 1 {
			continue
		}
		var kinds map[string]json.RawMessage
		if err := json.Unmarshal(payload, &kinds); err != nil || len(kinds) != 1 {
			p.t.Errorf("the client sent %q", payload)
		}
		for kind, content = range kinds {
			return kind, content
		}
	}
}

// expect reads a message, and checks its kind. It reports whether it came.
func (p *peer) expect(want string) map[string]any {
	kind, content := p.next()
	if kind != want {
		p.t.Errorf("the client sent %q; the test expects %q", kind, want)
		return nil
	}
	var fields map[string]any
	_ = json.Unmarshal(content, &fields)
	return fields
}

// grant opens the WebSocket and grants what is asked for, with token 17.
func (p *peer) grant() map[string]any {
	p.upgrade()
	asked := p.expect("acquire")
	p.send(fmt.Sprintf(`{"waiting":{"session":"s1","ttl_ms":%v}}`, asked["ttl_ms"]))
	p.granted(asked)
	return asked
}

func (p *peer) granted(asked map[string]any) {
	what, _ := json.Marshal(map[string]any{"granted": map[string]any{
		"key": asked["key"], "keys": asked["keys"], "token": 17, "session": "s1", "ttl_ms": asked["ttl_ms"],
	}})
	p.send(string(what))
}

// resumed opens the WebSocket, and answers a resume.
func (p *peer) resumed() map[string]any {
	p.upgrade()
	asked := p.expect("resume")
	p.granted(asked)
	return asked
}

// renew sends a check, and answers the client's answer to it.
func (p *peer) renew(n int, ttl int) {
	p.send(fmt.Sprintf(`{"check":{"n":%d}}`, n))
	kind, content := p.next()
	if kind != "here" || string(content) != fmt.Sprint(n) {
		p.t.Errorf("the client answered check %d with %s %s", n, kind, content)
	}
	p.send(fmt.Sprintf(`{"renewed":{"n":%d,"ttl_ms":%d}}`, n, ttl))
}

// released awaits the release, answers it, and awaits the end of the connection.
func (p *peer) released() {
	p.expect("release")
	p.send(`{"released":{}}`)
	p.ended()
}

func (p *peer) ended() {
	if kind, _ := p.next(); kind != "" {
		p.t.Errorf("the client sent %q after its last message", kind)
	}
}

// refuse answers over HTTP.
func (p *peer) refuse(status int, header http.Header, body string) {
	for name, values := range header {
		p.writer.Header()[name] = values
	}
	p.writer.WriteHeader(status)
	_, _ = io.WriteString(p.writer, body)
}

// lose reads the request, and resets the connection in place of the answer.
func (p *peer) lose() {
	_, _ = io.Copy(io.Discard, p.request.Body)
	conn, _, err := p.writer.(http.Hijacker).Hijack()
	if err != nil {
		p.t.Errorf("hijack: %v", err)
		return
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

// body is the request's, as text without the encoding of the values.
func (p *peer) body() string {
	text, _ := io.ReadAll(p.request.Body)
	return strings.TrimSpace(string(text))
}

// soon is a context for what the test expects to happen; its end is a failure of the test.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("this did not happen in 30 s: %s", what)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for tries := 0; tries < 3000; tries++ {
		if condition() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("this did not happen in 30 s: %s", what)
}
