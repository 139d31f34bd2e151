package palisade

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// A link is one connection of the engine, or the attempt to open one. Two goroutines serve it: one dials and reads, the
// other one writes, so that a node which does not read never delays the deadline of a lease. Both end soon after stop.
type link struct {
	ctx    context.Context
	cancel context.CancelFunc
	events chan<- linkEvent
	out    chan outgoing

	mu   sync.Mutex
	conn net.Conn
	// reason is why the reader gave up.
	reason error
}

type outgoing struct {
	op      opcode
	payload []byte
}

type linkEventKind int

const (
	linkOpened linkEventKind = iota
	linkMessage
	linkAlive
	linkEnded
)

type linkEvent struct {
	link    *link
	kind    linkEventKind
	text    []byte
	failure failure
}

const (
	// maxQueued bounds the frames that wait to be written. A node that reads takes each at once.
	maxQueued = 64
	// stopWithin bounds how long the goroutines of a link outlive it.
	stopWithin = 200 * time.Millisecond
)

// startLink opens a connection to address in the background. It tells events what happens, and ends done when both
// goroutines have ended.
func (c *Client) startLink(address string, timeout time.Duration, events chan<- linkEvent, done *sync.WaitGroup) *link {
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{ctx: ctx, cancel: cancel, events: events, out: make(chan outgoing, maxQueued)}
	done.Add(1)
	go func() {
		defer done.Done()
		l.serve(c, address, timeout, done)
	}()
	return l
}

// stop ends the link. It does not block.
func (l *link) stop() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.SetDeadline(time.Now().Add(stopWithin))
	}
}

// keep notes the connection, so that stop can end what waits for it. It reports whether the link goes on.
func (l *link) keep(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	return l.ctx.Err() == nil
}

func (l *link) giveUp(reason error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason = reason
}

func (l *link) whyEnded() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason
}

// send queues a frame, and reports whether there was room for it.
func (l *link) send(op opcode, payload []byte) bool {
	select {
	case l.out <- outgoing{op, payload}:
		return true
	default:
		return false
	}
}

func (l *link) tell(event linkEvent) {
	event.link = l
	select {
	case l.events <- event:
	case <-l.ctx.Done():
	}
}

func (l *link) serve(c *Client, address string, timeout time.Duration, done *sync.WaitGroup) {
	socket, err := l.open(c, address, timeout)
	if err != nil {
		l.tell(linkEvent{kind: linkEnded, failure: c.failureOf(err)})
		return
	}
	done.Add(1)
	go func() {
		defer done.Done()
		l.write(socket)
	}()
	l.tell(linkEvent{kind: linkOpened})
	for {
		op, payload, err := socket.read()
		switch {
		case err != nil:
			l.giveUp(err)
			l.tell(linkEvent{kind: linkEnded, failure: failure{err: err}})
			return
		case op == opText:
			l.tell(linkEvent{kind: linkMessage, text: payload})
		case op == opPing:
			// If a node sends more pings than it reads answers, the newest may go unanswered.
			l.send(opPong, payload)
			l.tell(linkEvent{kind: linkAlive})
		default:
			l.tell(linkEvent{kind: linkAlive})
		}
	}
}

// write sends what is queued until the link is stopped, and then closes the connection.
func (l *link) write(socket *ws) {
	for {
		select {
		case <-l.ctx.Done():
			socket.farewell(l.whyEnded())
			return
		case next := <-l.out:
			if socket.write(next.op, next.payload) != nil {
				// The reader finds the connection closed, and tells it.
				_ = socket.conn.Close()
				<-l.ctx.Done()
				return
			}
		}
	}
}

// open connects and upgrades within the timeout.
func (l *link) open(c *Client, address string, timeout time.Duration) (*ws, error) {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	socket, err := l.secure(ctx, c, conn, address)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return socket, nil
}

func (l *link) secure(ctx context.Context, c *Client, conn net.Conn, address string) (*ws, error) {
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if !l.keep(conn) {
		return nil, l.ctx.Err()
	}
	header := http.Header{}
	if config := c.options.TLS; config != nil {
		config = config.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(address)
		}
		// A WebSocket needs HTTP/1.1, whatever the configuration offers elsewhere.
		config.NextProtos = nil
		secured := tls.Client(conn, config)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secured
		if c.options.Token != "" {
			header.Set("Authorization", "Bearer "+c.options.Token)
		}
	}
	socket, err := upgrade(conn, address, holdPath, header)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	if !l.keep(conn) {
		return nil, l.ctx.Err()
	}
	return socket, nil
}

const holdPath = "/v1/hold"

// failureOf reads what a node says in place of doing what it was asked for.
func (c *Client) failureOf(err error) failure {
	var answer *httpRefusal
	if !errors.As(err, &answer) {
		return failure{err: err}
	}
	var body struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		Leader  *struct {
			Addr string `json:"client_addr"`
		} `json:"leader"`
	}
	known := json.Unmarshal(answer.body, &body) == nil && body.Error != ""
	f := failure{err: answer}
	switch {
	case known:
		f.refusal = &Refused{Code: body.Error, Message: body.Message, Body: answer.body}
	case answer.status >= 400 && answer.status < 500:
		f.refusal = &Refused{
			Code:    fmt.Sprintf("http_%d", answer.status),
			Message: fmt.Sprintf("%v; is it a Palisade node that serves this path?", answer),
		}
	}
	// Only the address of a redirect counts: the scheme is the client's, so a redirect never leads away from TLS.
	if target, err := url.Parse(answer.location); err == nil && isAddress(target.Host) {
		f.leader = target.Host
	} else if body.Leader != nil && isAddress(body.Leader.Addr) {
		f.leader = body.Leader.Addr
	}
	return f
}
