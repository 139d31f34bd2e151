package palisade

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"
)

// Requests over HTTP: reads and writes of records. Each looks for a node that can answer, as a lock does. What may be
// repeated after an answer was lost is the call's own to say.

const (
	// maxBody bounds the answer to a request, in bytes. A lock may have 1,000 holders with values of 4 KiB, which are six
	// times as long as JSON if they are control characters.
	maxBody = 64 << 20
	// keepIdle is how long an idle connection is kept for the next request. A node closes it after 10 s, and a request
	// that is sent at that moment would be lost.
	keepIdle = 5 * time.Second
)

// call is a request, and how its answer is read.
type call struct {
	method string
	path   string // escaped
	query  url.Values
	body   []byte
	// writes: a node that has executed the request has changed something.
	writes bool
	// once: a node that gets the request again does not execute it a second time. Reads have no need of it.
	once bool
	// read takes the answer; an error means that it cannot come from a server that speaks this protocol.
	read func(header http.Header, body []byte) error
}

// nothingDone are the codes of a node that has not begun to execute a request. After any other retryable code it may
// have been executed, or may still be.
var nothingDone = map[string]bool{"no_leader": true, "not_leader": true, "overloaded": true}

// attempt is what came of sending a request to one node.
type attempt struct {
	err error
	// reached: the request may have been executed.
	reached bool
	// refusal is the server's, if no other node would answer otherwise.
	refusal *Refused
	leader  string
}

func newTransport(options Options) *http.Transport {
	transport := &http.Transport{
		// As the connections of locks do: straight to the node, and with HTTP/1.1.
		Proxy:                  nil,
		DisableCompression:     true,
		IdleConnTimeout:        keepIdle,
		MaxResponseHeaderBytes: maxHead,
	}
	if options.TLS != nil {
		transport.TLSClientConfig = options.TLS.Clone()
		transport.TLSClientConfig.NextProtos = nil
	}
	return transport
}

// do sends a request until a node answers, within the client's patience. A write that may have been executed is sent
// again only if a repetition cannot execute it a second time.
func (c *Client) do(ctx context.Context, what call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, c.options.Patience)
	defer cancel()
	r := c.newRoute()
	mayBeDone := false
	for {
		address := r.target()
		a := c.attempt(within, address, what)
		if a.err == nil {
			c.answered(&r)
			return nil
		}
		mayBeDone = mayBeDone || a.reached && what.writes
		switch {
		case a.refusal != nil && !mayBeDone:
			return typed(a.refusal)
		case a.refusal != nil:
			// It may be the answer to what the request itself has done before.
			return &UnknownOutcomeError{Err: typed(a.refusal)}
		case mayBeDone && !what.once:
			return &UnknownOutcomeError{Err: unlessEnded(ctx, a.err)}
		}
		pause := time.Duration(0)
		if r.failed(a.leader) {
			pause = r.backoff(randomBelow)
		}
		if !sleep(within, pause) {
			err := unlessEnded(ctx, &UnreachableError{Endpoint: address, Err: a.err})
			if mayBeDone {
				return &UnknownOutcomeError{Err: err}
			}
			return err
		}
	}
}

// unlessEnded is err, or the reason why ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return fmt.Errorf("palisade: gave up the request: %w", ended)
	}
	return err
}

// sleep reports whether ctx goes on after the pause.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// newRoute begins with the endpoint that has answered last.
func (c *Client) newRoute() route {
	return route{endpoints: c.endpoints, at: int(c.lastAnswer.Load()) % len(c.endpoints)}
}

func (c *Client) answered(r *route) { c.lastAnswer.Store(int32(r.at)) }

// attempt sends a request to one node. What a node may repeat is given up sooner than what it may not: in place of an
// outcome that is unknown, the caller rather waits.
func (c *Client) attempt(ctx context.Context, address string, what call) attempt {
	if !what.writes || what.once {
		limited, cancel := context.WithTimeout(ctx, clamp(c.options.Patience/3, 300*time.Millisecond, 5*time.Second))
		defer cancel()
		ctx = limited
	}
	response, reached, err := c.send(ctx, address, what)
	if err != nil {
		return attempt{err: err, reached: reached}
	}
	defer response.Body.Close()
	body, err := readBody(response)
	if err != nil {
		return attempt{err: fmt.Errorf("the answer of %s has no end: %v", address, err), reached: true}
	}
	if response.StatusCode == http.StatusOK {
		return attempt{err: what.read(response.Header, body), reached: true}
	}
	return c.judge(&httpRefusal{response.StatusCode, response.Header.Get("Location"), what.path, body})
}

// judge says what a refusal means.
func (c *Client) judge(answer *httpRefusal) attempt {
	f := c.failureOf(answer)
	a := attempt{err: f.err, leader: f.leader, reached: answer.status >= 500 || answer.status < 300}
	if f.refusal == nil {
		return a
	}
	a.err = f.refusal
	again := retryable[f.refusal.Code] || answer.status >= 500 && answer.status != http.StatusInsufficientStorage
	if again {
		a.reached = !nothingDone[f.refusal.Code]
	} else {
		a.refusal, a.reached = f.refusal, false
	}
	return a
}

// send reports with an error whether the request may have reached the node.
func (c *Client) send(ctx context.Context, address string, what call) (*http.Response, bool, error) {
	target := &url.URL{Scheme: "http", Host: address, RawPath: what.path, RawQuery: what.query.Encode()}
	if c.options.TLS != nil {
		target.Scheme = "https"
	}
	target.Path, _ = url.PathUnescape(what.path)
	// The connection has less time than the answer: an address may lead nowhere.
	dialing, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(clamp(c.options.Patience/6, 300*time.Millisecond, 3*time.Second), cancel)
	defer timer.Stop()
	connected := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		connected = true
		timer.Stop()
	}}
	request, err := http.NewRequestWithContext(
		httptrace.WithClientTrace(dialing, trace), what.method, target.String(), bytes.NewReader(what.body))
	if err != nil {
		cancel()
		return nil, false, err
	}
	if what.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.options.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.options.Token)
	}
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		timedOut := dialing.Err() != nil
		cancel()
		switch {
		case c.options.TLS == nil && strings.Contains(err.Error(), `malformed HTTP response "\x15`):
			return nil, false, errTLSRequired
		case refusesCertificate(err):
			return nil, false, err
		// The errors of these contexts are not wrapped: they would pass for the end of the caller's context.
		case ctx.Err() != nil:
			err = fmt.Errorf("no answer of %s in time", address)
		case timedOut:
			err = fmt.Errorf("no connection to %s in time", address)
		}
		return nil, connected, err
	}
	response.Body = &cancelling{response.Body, cancel}
	return response, true, nil
}

// refusesCertificate reports whether the node has refused the client's certificate: with TLS 1.3 after the handshake has
// ended for the client, which may have sent its request. The node reads none then.
func refusesCertificate(err error) bool {
	_, alert, is := strings.Cut(err.Error(), "remote error: tls: ")
	return is && strings.Contains(alert, "certificate")
}

// cancelling ends the request's context with its body.
type cancelling struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c *cancelling) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}

func readBody(response *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("the answer is longer than %d bytes", maxBody)
	}
	return body, err
}

// escape writes a key as one segment of a path. A segment of dots alone would mean another path.
func escape(key string) string {
	if key == "." || key == ".." {
		return strings.ReplaceAll(key, ".", "%2E")
	}
	return url.PathEscape(key)
}
