package palisade

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// answered is a script that answers a request.
func answered(status int, body string) func(*peer) {
	return func(p *peer) {
		_ = p.body()
		p.refuse(status, nil, body)
	}
}

func lost(p *peer) { p.lose() }

const written = `{"version":17}`

// under is a lock that was granted with token 9.
func under(keys ...string) *Lock {
	lock := newLock(context.Background(), keys)
	lock.grant(9, nil, now().add(time.Minute))
	return lock
}

func TestAWriteSaysItsConditions(t *testing.T) {
	bodies := make(chan string, 8)
	script := func(p *peer) {
		if p.request.Method != http.MethodPost || p.request.URL.Path != "/v1/kv" || len(p.request.Header["X-Forward"]) > 0 {
			t.Errorf("the client sent %s %s %v", p.request.Method, p.request.URL, p.request.Header)
		}
		bodies <- p.body()
		p.refuse(200, nil, written)
	}
	c := client(t, Options{}, newHTTPNode(t, script, script, script, script))
	lock := under("nightly", "b")
	for _, write := range []struct {
		do   func() (uint64, error)
		want string
	}{
		{
			func() (uint64, error) { return c.Records.Put(soon(t), "r", []byte("a\xff"), WriteOptions{}) },
			`{"conditions":[],"changes":[{"put":{"key":"r","value":{"base64":"Yf8="}}}]}`,
		}, {
			func() (uint64, error) { return c.Records.Append(soon(t), "r", []byte("a"), WriteOptions{Lock: lock}) },
			`{"conditions":[{"held":{"lock":"nightly","token":9}}],"changes":[{"append":{"key":"r","value":{"base64":"YQ=="}}}]}`,
		}, {
			func() (uint64, error) {
				return c.Records.Delete(soon(t), "<r>", WriteOptions{Lock: lock, IfVersion: Version(0)})
			},
			`{"conditions":[{"held":{"lock":"nightly","token":9}},{"version":{"key":"<r>","version":0}}],"changes":[{"delete":{"key":"<r>"}}]}`,
		}, {
			func() (uint64, error) {
				return c.Records.Transact(soon(t), []Change{Put("a", nil), Delete("b")}, []Condition{VersionIs("c", 4), HeldWith("l", 5)})
			},
			`{"conditions":[{"version":{"key":"c","version":4}},{"held":{"lock":"l","token":5}}],` +
				`"changes":[{"put":{"key":"a","value":{"base64":""}}},{"delete":{"key":"b"}}]}`,
		},
	} {
		if version, err := write.do(); version != 17 || err != nil {
			t.Fatalf("the write returned %d, %v", version, err)
		}
		if body := <-bodies; body != write.want {
			t.Errorf("the client sent %s\nin place of  %s", body, write.want)
		}
	}
}

func TestARefusalOfAWriteHasItsFields(t *testing.T) {
	n := newHTTPNode(t,
		answered(409, `{"error":"stale fencing token","message":"m","seen":18,"got":9}`),
		answered(409, `{"error":"stale fencing token","message":"m","seen":18}`),
		answered(409, `{"error":"other_version","message":"m","version":0}`),
		answered(507, `{"error":"store_full","message":"m"}`),
		answered(507, `{"error":"no_space","message":"m"}`),
		answered(409, `{"error":"other_version","message":"m"}`),
	)
	c := client(t, Options{}, n)
	put := func() error {
		_, err := c.Records.Put(soon(t), "r", nil, WriteOptions{})
		if errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("a refusal of the first sending is certain; it is said to be %v", err)
		}
		return err
	}
	var stale *StaleTokenError
	if err := put(); !errors.As(err, &stale) || stale.Seen != 18 || stale.Got != 9 || !errors.Is(err, ErrStaleToken) {
		t.Errorf("%#v", err)
	}
	if err := put(); !errors.As(err, &stale) || stale.Seen != 18 || stale.Got != 0 {
		t.Errorf("%#v", err)
	}
	var other *OtherVersionError
	if err := put(); !errors.As(err, &other) || other.Version != 0 || !errors.Is(err, ErrOtherVersion) {
		t.Errorf("%#v", err)
	}
	if err := put(); !errors.Is(err, ErrStoreFull) {
		t.Errorf("%#v", err)
	}
	var refused *Refused
	if err := put(); !errors.As(err, &refused) || refused.Code != "no_space" {
		t.Errorf("%#v", err)
	}
	// Without a version it is a refusal, and says nothing of the record.
	if err := put(); errors.As(err, &other) && other.Refused == nil || !errors.Is(err, ErrOtherVersion) {
		t.Errorf("%#v", err)
	}
}

// Goal: a write that may have been executed is not sent again, and is told as such.
func TestAWriteWhoseAnswerIsLostHasAnUnknownOutcome(t *testing.T) {
	for name, script := range map[string]func(*peer){
		"the connection breaks":  lost,
		"the leader is replaced": answered(503, `{"error":"leadership_lost","message":"m"}`),
		"the node stops":         answered(503, `{"error":"shutting_down","message":"m"}`),
		"a newer code":           answered(503, `{"error":"news","message":"m"}`),
		"a balancer answers":     answered(502, `<html>`),
		"no version":             answered(200, `{}`),
		"no JSON":                answered(200, `ok`),
		"an answer without end": func(p *peer) {
			p.writer.Header().Set("Content-Length", "100")
			p.refuse(200, nil, written)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, write := range []func(*Client) (uint64, error){
				func(c *Client) (uint64, error) { return c.Records.Append(soon(t), "r", []byte("x"), WriteOptions{}) },
				func(c *Client) (uint64, error) {
					return c.Records.Append(soon(t), "r", []byte("x"), WriteOptions{Lock: under("l")})
				},
				// The record may be made, and deleted by another client before the repetition.
				func(c *Client) (uint64, error) {
					return c.Records.Put(soon(t), "r", nil, WriteOptions{IfVersion: Version(0)})
				},
				// The version of a record that does not change protects nothing.
				func(c *Client) (uint64, error) {
					return c.Records.Transact(soon(t), []Change{Append("r", nil)}, []Condition{VersionIs("other", 4)})
				},
			} {
				// The second node would do it.
				second := newHTTPNode(t)
				_, err := write(client(t, Options{}, newHTTPNode(t, script), second))
				var unknown *UnknownOutcomeError
				if !errors.As(err, &unknown) || !errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrUnreachable) {
					t.Fatalf("%#v", err)
				}
				if len(second.headers()) > 0 {
					t.Fatal("the write was sent to the second node")
				}
			}
		})
	}
}

// Goal: a node that has done nothing is no reason to give up, whatever the write is.
func TestAWriteThatNoNodeHasBegunIsSentToTheNext(t *testing.T) {
	for _, code := range []string{"no_leader", "overloaded"} {
		first := newHTTPNode(t, answered(503, fmt.Sprintf(`{"error":%q,"message":"m"}`, code)))
		c := client(t, Options{}, first, newHTTPNode(t, answered(200, written), answered(200, written)))
		for i := 0; i < 2; i++ {
			if version, err := c.Records.Append(soon(t), "r", []byte("x"), WriteOptions{}); version != 17 || err != nil {
				t.Fatalf("%s: %d, %v", code, version, err)
			}
		}
		if len(first.headers()) != 1 {
			t.Error("the next request does not begin with the node that has answered")
		}
	}
	leader := newHTTPNode(t, answered(200, written))
	follower := newHTTPNode(t, func(p *peer) {
		p.refuse(307, http.Header{"Location": {"http://" + leader.address() + "/v1/kv"}}, `{"error":"not_leader","message":"m"}`)
	})
	if _, err := client(t, Options{}, follower).Records.Append(soon(t), "r", nil, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Nothing listens at an address that was closed.
	closed, _ := net.Listen("tcp", "127.0.0.1:0")
	closed.Close()
	n := newHTTPNode(t, answered(200, written))
	c := clientOf(t, Options{}, closed.Addr().String()+","+n.address())
	if _, err := c.Records.Append(soon(t), "r", nil, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Goal: what compares the version of the record that it changes is sent again, and done once.
func TestAWriteThatCannotBeDoneTwiceIsRepeated(t *testing.T) {
	c := client(t, Options{}, newHTTPNode(t, lost), newHTTPNode(t, answered(200, written)))
	if version, err := c.Records.Append(soon(t), "r", nil, WriteOptions{IfVersion: Version(4)}); version != 17 || err != nil {
		t.Fatal(version, err)
	}
}

// Goal: the refusal of a repetition may be the answer to what the first sending has done. It is never told as one.
func TestTheRefusalOfARepetitionIsAnUnknownOutcome(t *testing.T) {
	for _, refusal := range []string{
		`{"error":"other_version","message":"m","version":5}`,
		`{"error":"stale fencing token","message":"m","seen":18,"got":9}`,
		`{"error":"denied","message":"m"}`,
	} {
		c := client(t, Options{}, newHTTPNode(t, lost), newHTTPNode(t, answered(409, refusal)))
		_, err := c.Records.Put(soon(t), "r", nil, WriteOptions{Lock: under("l"), IfVersion: Version(4)})
		var unknown *UnknownOutcomeError
		var refused *Refused
		if !errors.As(err, &unknown) || errors.As(err, &refused) || errors.Is(err, ErrOtherVersion) || errors.Is(err, ErrStaleToken) {
			t.Fatalf("%#v", err)
		}
		if !errors.As(unknown.Err, &refused) {
			t.Fatalf("it does not say what the node has answered: %#v", unknown.Err)
		}
	}
}

func TestARequestThatNoNodeAnswersIsGivenUp(t *testing.T) {
	none, _ := net.Listen("tcp", "127.0.0.1:0")
	none.Close()
	c := clientOf(t, Options{Patience: 300 * time.Millisecond}, none.Addr().String())
	_, err := c.Records.Append(soon(t), "r", nil, WriteOptions{})
	var unreachable *UnreachableError
	if !errors.As(err, &unreachable) || errors.Is(err, ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%#v", err)
	}
	hang := func(p *peer) { _ = p.body(); p.hang() }
	c = client(t, Options{Patience: 3 * time.Second}, newHTTPNode(t, hang))
	if _, err := c.Records.Append(soon(t), "r", nil, WriteOptions{}); !errors.Is(err, ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%#v", err)
	}
	// A silent node is left for the next one, if the request may be sent again.
	c = client(t, Options{Patience: 3 * time.Second}, newHTTPNode(t, hang), newHTTPNode(t, answered(200, written)))
	if _, err := c.Records.Append(soon(t), "r", nil, WriteOptions{IfVersion: Version(1)}); err != nil {
		t.Fatal(err)
	}
}

func TestARequestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	again, cancelAgain := context.WithCancel(context.Background())
	n := newHTTPNode(t,
		func(p *peer) { _ = p.body(); cancel(); p.hang() }, func(p *peer) { cancelAgain(); p.hang() })
	c := client(t, Options{Patience: time.Minute}, n)
	_, err := c.Records.Append(ctx, "r", []byte("x"), WriteOptions{})
	if !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Fatalf("%#v", err)
	}
	if _, err := c.Records.Append(ctx, "r", []byte("x"), WriteOptions{}); err != context.Canceled {
		t.Fatalf("nothing was sent, and the error is %#v", err)
	}
	if _, err := c.Records.Get(again, "r", ReadOptions{}); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknownOutcome) {
		t.Fatalf("%#v", err)
	}
}

func TestARecordIsRead(t *testing.T) {
	headers := http.Header{"X-Version": {"12"}, "X-Max-Fence": {"18446744073709551615"}}
	n := newHTTPNode(t,
		func(p *peer) {
			if path := p.request.URL.EscapedPath(); path != "/v1/kv/a%2Fb%20%3F%C3%BC" || p.request.URL.RawQuery != "" {
				t.Errorf("the client asked for %s", p.request.URL)
			}
			p.refuse(200, headers, "a\xff")
		},
		func(p *peer) {
			if path := p.request.URL.EscapedPath(); path != "/v1/kv/%2E%2E" || p.request.URL.RawQuery != "consistency=stale" {
				t.Errorf("the client asked for %s", p.request.URL)
			}
			p.refuse(200, http.Header{"X-Version": {"12"}, "X-Age-Ms": {"250"}}, "")
		},
		func(p *peer) { p.refuse(200, http.Header{"X-Version": {"12"}}, "") },
		answered(404, `{"error":"no_record","message":"m"}`),
		// What is no record of Palisade is left for the next node.
		lost, answered(503, `{"error":"no_leader","message":"m"}`), answered(200, "no headers"), answered(502, "<html>"),
		func(p *peer) { p.refuse(200, http.Header{"X-Version": {"13"}}, "x") },
		answered(404, "not this service"),
	)
	c := client(t, Options{}, n)
	record, err := c.Records.Get(soon(t), "a/b ?ü", ReadOptions{})
	if err != nil || string(record.Value) != "a\xff" || record.Version != 12 || record.Fence != 1<<64-1 || record.Age != 0 {
		t.Fatalf("%+v, %v", record, err)
	}
	record, err = c.Records.Get(soon(t), "..", ReadOptions{Stale: true})
	if err != nil || record.Fence != 0 || record.Age != 250*time.Millisecond {
		t.Fatalf("%+v, %v", record, err)
	}
	if record, err = c.Records.Get(soon(t), "r", ReadOptions{Stale: true}); err != nil || record.Age != AgeUnknown {
		t.Fatalf("%+v, %v", record, err)
	}
	if record, err = c.Records.Get(soon(t), "r", ReadOptions{}); !errors.Is(err, ErrNoRecord) || record != nil {
		t.Fatalf("%+v, %v", record, err)
	}
	if record, err = c.Records.Get(soon(t), "r", ReadOptions{}); err != nil || record.Version != 13 {
		t.Fatalf("%+v, %v", record, err)
	}
	var refused *Refused
	if _, err = c.Records.Get(soon(t), "r", ReadOptions{}); !errors.As(err, &refused) || refused.Code != "http_404" {
		t.Fatalf("%v", err)
	}
	if _, err = c.Records.Get(soon(t), "", ReadOptions{}); !errors.As(err, &refused) || refused.Code != "invalid" {
		t.Fatalf("%v", err)
	}
}

func TestATransactionThatNoNodeReadsIsRefusedAtOnce(t *testing.T) {
	c := client(t, Options{}, newHTTPNode(t))
	_, err := c.Records.Put(soon(t), "r", make([]byte, 200<<10), WriteOptions{})
	var refused *Refused
	if !errors.As(err, &refused) || refused.Code != "too_large" {
		t.Fatalf("%v", err)
	}
	if _, err = c.Records.Put(soon(t), "\xff", nil, WriteOptions{}); !errors.As(err, &refused) || refused.Code != "invalid" {
		t.Fatalf("%v", err)
	}
}

func TestRequestsUseTLSAndTheToken(t *testing.T) {
	n := startNode(t, true, func(p *peer) {
		if p.request.Header.Get("Authorization") != "Bearer secret" || p.request.TLS == nil || p.request.ProtoMajor != 1 {
			t.Errorf("the client sent %v", p.request.Header)
		}
		p.refuse(200, http.Header{"X-Version": {"1"}}, "")
	})
	n.http = true
	config := n.server.Client().Transport.(*http.Transport).TLSClientConfig
	c := client(t, Options{TLS: config, Token: "secret"}, n)
	if _, err := c.Records.Get(soon(t), "r", ReadOptions{}); err != nil {
		t.Fatal(err)
	}
	// A node that requires TLS has not read what comes without.
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: n.server.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			// As Palisade's nodes do: an alert in place of an answer.
			raw := conn.(*tls.Conn).NetConn()
			_, _ = raw.Read(make([]byte, 4096))
			_, _ = raw.Write([]byte{tlsAlert, 3, 3, 0, 2, 2, 10})
			_ = raw.Close()
		}
	}()
	c = clientOf(t, Options{Patience: time.Minute}, listener.Addr().String())
	if a := c.attempt(soon(t), listener.Addr().String(), aWrite); a.reached || a.err != errTLSRequired {
		t.Fatalf("%+v", a)
	}
}

// Goal: with TLS 1.3 a node refuses the client's certificate after the client may have sent its request, and reads none.
func TestANodeThatRefusesTheCertificateHasReadNothing(t *testing.T) {
	n := startNode(t, true)
	strict, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: n.server.TLS.Certificates, ClientAuth: tls.RequireAnyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer strict.Close()
	go func() {
		conn, err := strict.Accept()
		if err != nil {
			return
		}
		_ = conn.(*tls.Conn).Handshake()
		_, _ = io.Copy(io.Discard, conn.(*tls.Conn).NetConn())
		_ = conn.Close()
	}()
	config := n.server.Client().Transport.(*http.Transport).TLSClientConfig
	c := clientOf(t, Options{TLS: config, Patience: time.Minute}, strict.Addr().String())
	if a := c.attempt(soon(t), strict.Addr().String(), aWrite); a.reached || !refusesCertificate(a.err) {
		t.Fatalf("%+v", a)
	}
}

// aWrite is one that is not sent again.
var aWrite = call{method: http.MethodPost, path: "/v1/kv", body: []byte("{}"), writes: true}

// Goal: an error says why there is no connection, and the client knows that the write was not done.
func TestTheReasonForNoConnectionIsTold(t *testing.T) {
	closed, _ := net.Listen("tcp", "127.0.0.1:0")
	closed.Close()
	address := closed.Addr().String()
	c := clientOf(t, Options{Patience: time.Minute}, address)
	if a := c.attempt(soon(t), address, aWrite); a.reached || !errors.Is(a.err, syscall.ECONNREFUSED) {
		t.Errorf("%+v", a)
	}
	// The certificate is of a CA that the client does not know.
	n := startNode(t, true)
	c = client(t, Options{TLS: &tls.Config{RootCAs: x509.NewCertPool()}, Patience: time.Minute}, n)
	var foreign x509.UnknownAuthorityError
	if a := c.attempt(soon(t), n.address(), aWrite); a.reached || !errors.As(a.err, &foreign) {
		t.Errorf("%+v", a)
	}
	// No node accepts the connection in time: the TLS handshake has no answer. It is not the end of the caller's context.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c = clientOf(t, Options{TLS: &tls.Config{}, Patience: time.Second}, silent.Addr().String())
	a := c.attempt(soon(t), silent.Addr().String(), aWrite)
	if a.reached || errors.Is(a.err, context.Canceled) || !strings.Contains(fmt.Sprint(a.err), "no connection to") {
		t.Errorf("%+v", a)
	}
}

func TestLocksAreShownAndListed(t *testing.T) {
	const holder = `{"owner":"w","session":3,"token":17,"expires_in_ms":2500,"mode":"semaphore","permits":2,"of":5,"holds":1,"keys":["a","b"],"value":"v","new":1}`
	const lock = `"key":"a","held":true,"holder":null,"holders":[` + holder + `],"queue":[{"owner":"x","session":5,"mode":"shared","permits":null,"of":null,"keys":[]}]`
	n := newHTTPNode(t,
		answered(200, `{`+lock+`}`),
		// Another lock, one that lacks a field, and a holder without a token, are no answers; the next node has one.
		answered(200, `{"key":"b","held":false,"holders":[],"queue":[]}`),
		answered(200, `{"key":"a"}`),
		answered(200, `{"key":"a","holders":[],"queue":[]}`),
		answered(200, `{"key":"a","held":false,"queue":[]}`),
		answered(200, `{"key":"a","held":false,"holders":[],"queue":null}`),
		answered(200, strings.Replace(`{`+lock+`}`, `"token":17`, `"token":0`, 1)),
		answered(200, `{`+lock+`,"age_ms":40}`),
		func(p *peer) {
			if p.request.URL.String() != "/v1/locks?after=a%26&consistency=stale&limit=2&prefix=a%2F" {
				t.Errorf("the client asked for %s", p.request.URL)
			}
			p.refuse(200, nil, `{"locks":[{`+lock+`}],"next_after":"a","age_ms":null}`)
		},
		answered(200, `{}`),
		answered(200, `{"locks":[{"key":"a"}],"next_after":null}`),
		answered(200, `{"locks":[],"next_after":null}`),
	)
	c := client(t, Options{Patience: time.Minute}, n)
	view, err := c.Show(soon(t), "a", ReadOptions{})
	if err != nil || !view.Held || len(view.Holders) != 1 || len(view.Queue) != 1 || view.Age != 0 {
		t.Fatalf("%+v, %v", view, err)
	}
	want := Holder{
		Owner: "w", Session: 3, Token: 17, ExpiresIn: 2500 * time.Millisecond, Mode: "semaphore", Permits: 2, Of: 5, Holds: 1,
		Keys: []string{"a", "b"}, Value: "v",
	}
	if fmt.Sprint(view.Holders[0]) != fmt.Sprint(want) {
		t.Errorf("%+v", view.Holders[0])
	}
	if fmt.Sprint(view.Queue[0]) != fmt.Sprint(Waiter{Owner: "x", Session: 5, Mode: "shared", Keys: []string{}}) {
		t.Errorf("%+v", view.Queue[0])
	}
	if view, err = c.Show(soon(t), "a", ReadOptions{Stale: true}); err != nil || view.Age != 40*time.Millisecond {
		t.Fatalf("%+v, %v", view, err)
	}
	page, err := c.List(soon(t), "a/", ListOptions{Limit: 2, After: "a&", Stale: true})
	if err != nil || len(page.Locks) != 1 || page.NextAfter != "a" || page.Age != AgeUnknown {
		t.Fatalf("%+v, %v", page, err)
	}
	if page, err = c.List(soon(t), "", ListOptions{}); err != nil || len(page.Locks) != 0 || page.NextAfter != "" {
		t.Fatalf("%+v, %v", page, err)
	}
}

// crowded is the longest lock: it has 1,000 holders, with values of 4 KiB that are long as JSON.
func crowded() string {
	holder := `{"token":1,"value":"` + strings.Repeat(`\u0001`, 4096) + `"}`
	return `{"key":"nightly","held":true,"holders":[` + strings.Repeat(holder+",", 999) + holder + `],"queue":[]}`
}

func TestTheLongestAnswerIsRead(t *testing.T) {
	c := client(t, Options{Patience: time.Minute}, newHTTPNode(t, answered(200, crowded())))
	if view, err := c.Show(soon(t), "nightly", ReadOptions{}); err != nil || len(view.Holders) != 1000 {
		t.Fatal(err)
	}
}
