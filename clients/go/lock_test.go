package palisade

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const ttl = 3 * time.Second

func mustLock(t *testing.T, c *Client, options LockOptions) *Lock {
	t.Helper()
	lock, err := c.Lock(soon(t), "nightly", options)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func mustRelease(t *testing.T, lock *Lock) {
	t.Helper()
	if err := lock.Release(soon(t)); err != nil {
		t.Fatal(err)
	}
	notLost(t, lock)
	if lock.Valid() || lock.Remaining() != 0 || !errors.Is(lock.Err(), ErrReleased) {
		t.Fatalf("the lock is released; Valid says %v, Remaining %v, Err %v", lock.Valid(), lock.Remaining(), lock.Err())
	}
	await(t, "the end of the lock's context", lock.Context().Done())
	if cause := Cause(lock.Context()); cause != ErrReleased {
		t.Fatalf("the cause is %v", cause)
	}
}

func notLost(t *testing.T, lock *Lock) {
	t.Helper()
	select {
	case <-lock.Lost():
		t.Fatalf("the lock is lost: %v", lock.Err())
	default:
	}
}

func isLost(t *testing.T, lock *Lock, code string) {
	t.Helper()
	await(t, "the loss of the lock", lock.Lost())
	var lost *LostError
	if !errors.As(lock.Err(), &lost) || lost.Code != code || !errors.Is(lock.Err(), ErrLost) {
		t.Fatalf("Err says %v, and not that the lock is lost by %s", lock.Err(), code)
	}
	if name := fmt.Sprintf("(token %d) is lost", lock.Token()); !strings.Contains(lost.Error(), name) {
		t.Fatalf("%q does not say %q", lost.Error(), name)
	}
	if lock.Valid() || lock.Remaining() != 0 {
		t.Fatalf("the lock is lost; Valid says %v, Remaining %v", lock.Valid(), lock.Remaining())
	}
	await(t, "the end of the lock's context", lock.Context().Done())
	if cause := Cause(lock.Context()); cause != error(lost) {
		t.Fatalf("the cause is %v", cause)
	}
	if err := lock.Release(soon(t)); err != error(lost) {
		t.Fatalf("the release of a lost lock returned %v", err)
	}
}

func TestLockIsGrantedRenewedAndReleased(t *testing.T) {
	asked := make(chan map[string]any, 1)
	renewed := make(chan struct{})
	n := newNode(t, func(p *peer) {
		asked <- p.grant()
		p.sendFrame(0x89, []byte("ping"))
		if op, payload, _ := p.frame(); op != 10 || string(payload) != "ping" {
			t.Errorf("the client answered a ping with %d %q", op, payload)
		}
		time.Sleep(50 * time.Millisecond)
		p.renew(1, 3000)
		close(renewed)
		p.released()
	})
	c := client(t, Options{}, n)
	lock := mustLock(t, c, LockOptions{
		TTL: ttl, Wait: 2 * time.Second, Permits: 2, Of: 5, MaxQueue: 7, Owner: "w", Value: "v",
	})
	fields := <-asked
	for name, want := range map[string]any{
		"key": "nightly", "ttl_ms": 3000.0, "permits": 2.0, "of": 5.0, "max_queue": 7.0, "owner": "w", "value": "v",
	} {
		if fields[name] != want {
			t.Errorf("the acquire has %v as %s", fields[name], name)
		}
	}
	first := lock.end()
	if lock.Token() != 17 || !lock.Valid() || lock.Remaining() > ttl-margin(ttl) || lock.Err() != nil {
		t.Fatalf("token %d, valid %v, remaining %v, err %v", lock.Token(), lock.Valid(), lock.Remaining(), lock.Err())
	}
	header := http.Header{}
	lock.SetHeader(header)
	if header.Get("X-Fence-Token") != "17" {
		t.Fatalf("the header is %v", header)
	}
	await(t, "the renewal", renewed)
	eventually(t, "a longer lease", func() bool { return lock.end() > first })
	mustRelease(t, lock)
	mustRelease(t, lock)
}

// end is when the lease ends.
func (l *Lock) end() instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaseEnd
}

func TestOwnerIsTheProcessByDefault(t *testing.T) {
	asked := make(chan map[string]any, 1)
	n := newNode(t, func(p *peer) { asked <- p.grant(); p.released() })
	lock := mustLock(t, client(t, Options{}, n), LockOptions{Shared: true})
	fields := <-asked
	owner, _ := fields["owner"].(string)
	if _, process, found := strings.Cut(owner, ":"); !found || process == "" {
		t.Fatalf("the owner is %q", owner)
	}
	if fields["mode"] != "shared" || fields["ttl_ms"] != 30000.0 || fields["wait_ms"] != 0.0 {
		t.Fatalf("the acquire is %v", fields)
	}
	mustRelease(t, lock)
}

func TestSeveralKeysAreOneLock(t *testing.T) {
	asked := make(chan map[string]any, 1)
	n := newNode(t, func(p *peer) { asked <- p.grant(); p.released() })
	lock, err := client(t, Options{}, n).LockAll(soon(t), []string{"a", "b"}, LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if fields := <-asked; fields["key"] != nil || len(fields["keys"].([]any)) != 2 {
		t.Fatalf("the acquire is %v", fields)
	}
	mustRelease(t, lock)
}

func TestLockGoesOnAfterACut(t *testing.T) {
	resumed, renewed := make(chan map[string]any, 1), make(chan struct{})
	n := newNode(t, func(p *peer) { p.grant() }, func(p *peer) {
		resumed <- p.resumed()
		p.renew(1, 3000)
		close(renewed)
		p.released()
	})
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	await(t, "the renewal", renewed)
	if fields := <-resumed; fields["session"] != "s1" || fields["token"] != 17.0 {
		t.Fatalf("the resume is %v", fields)
	}
	mustRelease(t, lock)
}

func TestGarbageFromTheNodeIsACut(t *testing.T) {
	n := newNode(t,
		func(p *peer) { p.grant(); p.send(`{"granted":17}`); p.ended() },
		func(p *peer) { p.resumed(); p.sendFrame(0x82, []byte{1}); p.ended() },
		func(p *peer) { p.resumed(); p.raw(0xFF, 0xFF, 0xFF); p.ended() },
		func(p *peer) { p.refuse(http.StatusOK, nil, "hello") },
		func(p *peer) { p.resumed(); p.released() },
	)
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: 30 * time.Second})
	eventually(t, "five connections", func() bool { return len(n.headers()) == 5 })
	mustRelease(t, lock)
}

func TestAFollowerRedirectsToTheLeader(t *testing.T) {
	leader := newNode(t, func(p *peer) { p.grant(); p.released() })
	follower := newNode(t, func(p *peer) {
		p.refuse(http.StatusTemporaryRedirect, http.Header{"Location": {"http://" + leader.address() + "/v1/hold"}},
			`{"error":"not_leader","message":"m","leader":null}`)
	})
	mustRelease(t, mustLock(t, client(t, Options{}, follower), LockOptions{TTL: ttl}))
}

func TestTheEndpointsAreTriedInTurn(t *testing.T) {
	closed := closedPort(t)
	silent := newNode(t)
	electing := newNode(t, func(p *peer) {
		p.refuse(http.StatusServiceUnavailable, http.Header{"Retry-After": {"1"}}, `{"error":"no_leader","message":"m"}`)
	})
	good := newNode(t, func(p *peer) { p.grant(); p.released() })
	endpoints := strings.Join([]string{closed, silent.address(), electing.address(), good.address()}, ", ")
	mustRelease(t, mustLock(t, clientOf(t, Options{}, endpoints), LockOptions{TTL: ttl}))
}

// closedPort is an address at which no program listens.
func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func TestAFrozenNodeCannotDelayTheLoss(t *testing.T) {
	n := newNode(t, func(p *peer) { p.grant(); p.hang() })
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: 700 * time.Millisecond})
	isLost(t, lock, "expired")
	noGoroutines(t)
}

func TestABrokenLockIsLost(t *testing.T) {
	n := newNode(t, func(p *peer) {
		p.grant()
		p.send(`{"lost":{"error":"not_holder","message":"an operator has broken the lock"}}`)
		p.ended()
	})
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	isLost(t, lock, "not_holder")
	noGoroutines(t)
}

func TestAReleaseWithALostReplyIsNoLoss(t *testing.T) {
	n := newNode(t, func(p *peer) { p.grant(); p.expect("release") }, func(p *peer) {
		p.upgrade()
		p.expect("resume")
		p.expect("release")
		p.send(`{"lost":{"error":"no_session","message":"m"}}`)
		p.ended()
	})
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	mustRelease(t, lock)
	noGoroutines(t)
}

func TestAReleaseWithoutANodeEndsWithTheTTL(t *testing.T) {
	n := newNode(t, func(p *peer) { p.grant(); p.expect("release"); p.hang() })
	const ttl = 700 * time.Millisecond
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	mustRelease(t, lock)
	if at, end := now(), lock.end().add(margin(ttl)); at < end {
		t.Fatalf("the release returned %v before the TTL was over", end.sub(at))
	}
}

func TestAReleaseFindsThatTheLockWasLostBefore(t *testing.T) {
	n := newNode(t, func(p *peer) {
		p.grant()
		p.expect("release")
		p.send(`{"lost":{"error":"not_holder","message":"m"}}`)
	})
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	if err := lock.Release(soon(t)); !errors.Is(err, ErrLost) {
		t.Fatalf("the release returned %v", err)
	}
	notLost(t, lock)
}

func TestAReleaseGoesOnAfterItsContext(t *testing.T) {
	n := newNode(t, func(p *peer) { p.grant(); time.Sleep(50 * time.Millisecond); p.released() })
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if err := lock.Release(done); !errors.Is(err, context.Canceled) {
		t.Fatalf("the release returned %v", err)
	}
	mustRelease(t, lock)
}

func TestRefusalsAreErrors(t *testing.T) {
	for code, want := range map[string]error{"held": ErrHeld, "timeout": ErrTimeout, "denied": nil} {
		n := newNode(t, func(p *peer) {
			p.upgrade()
			p.expect("acquire")
			p.send(`{"waiting":{"session":"s1","ttl_ms":3000}}`)
			p.send(`{"error":{"error":"` + code + `","message":"m","queue":3}}`)
			p.ended()
		})
		_, err := client(t, Options{}, n).Lock(soon(t), "nightly", LockOptions{TTL: ttl})
		var refused *Refused
		if !errors.As(err, &refused) || refused.Code != code || refused.Message != "m" ||
			!strings.Contains(string(refused.Body), `"queue":3`) {
			t.Fatalf("%s: the error is %v", code, err)
		}
		for _, sentinel := range []error{ErrHeld, ErrTimeout, ErrLost, ErrUnreachable} {
			if errors.Is(err, sentinel) != (sentinel == want) {
				t.Fatalf("%s: errors.Is(%v, %v) is wrong", code, err, sentinel)
			}
		}
	}
}

func TestAnUpgradeThatIsDeniedIsARefusal(t *testing.T) {
	n := newNode(t,
		func(p *peer) { p.refuse(401, nil, `{"error":"unauthenticated","message":"m"}`) },
		func(p *peer) { p.refuse(404, nil, "not found") },
	)
	c := client(t, Options{}, n)
	for _, code := range []string{"unauthenticated", "http_404"} {
		_, err := c.Lock(soon(t), "nightly", LockOptions{TTL: ttl})
		var refused *Refused
		if !errors.As(err, &refused) || refused.Code != code || errors.Is(err, ErrUnreachable) {
			t.Fatalf("the error is %v, and not the refusal %s", err, code)
		}
	}
}

func TestNobodyIsReachable(t *testing.T) {
	c := clientOf(t, Options{Patience: 200 * time.Millisecond}, closedPort(t))
	for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
		_, err := c.Lock(soon(t), "nightly", LockOptions{TTL: ttl, Wait: wait})
		var why *net.OpError
		if !errors.Is(err, ErrUnreachable) || !errors.As(err, &why) {
			t.Fatalf("the error is %v", err)
		}
	}
}

func TestAWaitThatIsCancelledIsWithdrawn(t *testing.T) {
	waits := make(chan struct{})
	n := newNode(t, func(p *peer) {
		p.upgrade()
		p.expect("acquire")
		p.send(`{"waiting":{"session":"s1","ttl_ms":3000}}`)
		p.renew(1, 3000)
		close(waits)
		p.released()
	})
	ctx, cancel := context.WithCancel(soon(t))
	go func() { <-waits; cancel() }()
	_, err := client(t, Options{}, n).Lock(ctx, "nightly", LockOptions{TTL: ttl, Wait: time.Hour})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the error is %v", err)
	}
}

type contextKey struct{}

func TestALockOutlivesTheContextOfItsAcquire(t *testing.T) {
	n := newNode(t, func(p *peer) { p.grant(); p.released() })
	ctx, cancel := context.WithTimeout(context.WithValue(soon(t), contextKey{}, "x"), 20*time.Second)
	lock, err := client(t, Options{}, n).Lock(ctx, "nightly", LockOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, bounded := lock.Context().Deadline(); bounded || lock.Context().Err() != nil || !lock.Valid() {
		t.Fatal("the lock ended with the context of its acquire")
	}
	if found, _ := FromContext(lock.Context()); found != lock || lock.Context().Value(contextKey{}) != "x" {
		t.Fatal("the lock's context lacks a value")
	}
	mustRelease(t, lock)
}

func TestTheValueIsReplaced(t *testing.T) {
	n := newNode(t, func(p *peer) {
		p.grant()
		if fields := p.expect("value"); fields["value"] != "x" {
			t.Errorf("the value is %v", fields)
		}
		p.send(`{"proclaimed":{"n":1}}`)
		p.expect("value")
		p.send(`{"error":{"n":2,"error":"invalid","message":"m"}}`)
		p.released()
	})
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	if err := lock.SetValue(soon(t), "x"); err != nil {
		t.Fatal(err)
	}
	var refused *Refused
	if err := lock.SetValue(soon(t), "y"); !errors.As(err, &refused) || refused.Code != "invalid" {
		t.Fatalf("the error is %v", err)
	}
	mustRelease(t, lock)
	if err := lock.SetValue(soon(t), "z"); !errors.Is(err, ErrReleased) {
		t.Fatalf("the error is %v", err)
	}
}

func TestAValueThatIsTooLongIsRefusedAtOnce(t *testing.T) {
	frames := make(chan int, 1)
	n := newNode(t, func(p *peer) {
		p.grant()
		_, payload, _ := p.frame()
		frames <- len(payload)
		p.send(`{"proclaimed":{"n":1}}`)
		p.released()
	})
	lock := mustLock(t, client(t, Options{}, n), LockOptions{TTL: ttl})
	var refused *Refused
	if err := lock.SetValue(soon(t), strings.Repeat("<", 4097)); !errors.As(err, &refused) || refused.Code != "invalid" {
		t.Fatalf("the error is %v", err)
	}
	if err := lock.SetValue(soon(t), strings.Repeat("<", 4096)); err != nil {
		t.Fatal(err)
	}
	if size := <-frames; size > 16384 {
		t.Fatalf("the frame of a value of 4,096 bytes has %d bytes", size)
	}
	mustRelease(t, lock)
}

func TestTheFirstLookAfterAPauseSaysThatTheLockIsLost(t *testing.T) {
	// The runner does not run: as if the process had just woken up, and nothing had been told yet.
	lock := newLock(context.Background(), []string{"nightly"})
	lock.run = newRunner(&Client{endpoints: []string{"a:1"}}, lock, request(ttl, 0))
	lock.grant(17, nil, now().add(time.Hour))
	if !lock.Valid() {
		t.Fatal("the lock is held")
	}
	lock.grant(17, nil, now())
	if lock.Valid() {
		t.Fatal("the lease has ended, and Valid says yes")
	}
	await(t, "the loss", lock.Lost())
	// A renewal that the runner takes from the socket now does not bring the lock back.
	if lock.extend(now().add(time.Hour)) || lock.Valid() {
		t.Fatal("a lost lock has come back")
	}
}

func TestDoReleasesWhenItsFunctionEnds(t *testing.T) {
	failed := errors.New("failed")
	serve := func(p *peer) { p.grant(); p.released() }
	n := newNode(t, serve, serve, serve)
	c := client(t, Options{}, n)
	do := func(f func(context.Context, *Lock) error) error {
		return c.Do(soon(t), "nightly", LockOptions{TTL: ttl}, f)
	}
	if err := do(func(ctx context.Context, lock *Lock) error {
		if !lock.Valid() || ctx.Err() != nil {
			t.Error("the function runs without the lock")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := do(func(context.Context, *Lock) error { return failed }); err != failed {
		t.Fatalf("the error is %v", err)
	}
	defer func() {
		if recover() != "panic" {
			t.Error("the panic was swallowed")
		}
	}()
	_ = do(func(context.Context, *Lock) error { panic("panic") })
}

func TestDoTellsThatTheLockWasLost(t *testing.T) {
	lose := func(p *peer) { p.grant(); p.send(`{"lost":{"error":"no_session","message":"m"}}`) }
	n := newNode(t, lose, lose)
	c := client(t, Options{}, n)
	failed := errors.New("failed")
	for _, result := range []error{nil, failed} {
		err := c.Do(soon(t), "nightly", LockOptions{TTL: ttl}, func(ctx context.Context, lock *Lock) error {
			await(t, "the end of the context", ctx.Done())
			if !errors.Is(Cause(ctx), ErrLost) {
				t.Errorf("the cause is %v", Cause(ctx))
			}
			return result
		})
		var lost *LostError
		if !errors.Is(err, ErrLost) || !errors.As(err, &lost) || lost.Code != "no_session" {
			t.Fatalf("the error is %v", err)
		}
		if result != nil && !errors.Is(err, result) {
			t.Fatalf("the error %v hides that of the function", err)
		}
	}
}

func TestDoKeepsTheLockUntilItsFunctionHasStopped(t *testing.T) {
	stopped := make(chan struct{})
	n := newNode(t, func(p *peer) {
		p.grant()
		p.expect("release")
		select {
		case <-stopped:
		default:
			t.Error("the lock was released while the function ran")
		}
		p.send(`{"released":{}}`)
	})
	ctx, cancel := context.WithCancel(soon(t))
	err := client(t, Options{}, n).Do(ctx, "nightly", LockOptions{TTL: ttl}, func(ctx context.Context, lock *Lock) error {
		cancel()
		await(t, "the end of the context", ctx.Done())
		time.Sleep(50 * time.Millisecond)
		if !lock.Valid() {
			t.Error("the lock has ended with its context")
		}
		close(stopped)
		return Cause(ctx)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
		t.Fatalf("the error is %v", err)
	}
}

func TestTLSAndTheTokenGoToTheLeader(t *testing.T) {
	leader := startNode(t, true, func(p *peer) { p.grant(); p.released() })
	follower := startNode(t, true, func(p *peer) {
		// The scheme of the redirect does not count: the client stays with TLS.
		p.refuse(http.StatusTemporaryRedirect, http.Header{"Location": {"http://" + leader.address() + "/v1/hold"}}, "")
	})
	roots := x509.NewCertPool()
	roots.AddCert(follower.server.Certificate())
	c := client(t, Options{TLS: &tls.Config{RootCAs: roots}, Token: "secret"}, follower)
	mustRelease(t, mustLock(t, c, LockOptions{TTL: ttl}))
	for _, headers := range [][]http.Header{leader.headers(), follower.headers()} {
		if len(headers) != 1 || headers[0].Get("Authorization") != "Bearer secret" {
			t.Fatalf("the headers are %v", headers)
		}
	}
}

func TestAnUnknownAuthorityIsUnreachable(t *testing.T) {
	n := startNode(t, true)
	c := client(t, Options{TLS: &tls.Config{RootCAs: x509.NewCertPool()}, Patience: 200 * time.Millisecond}, n)
	_, err := c.Lock(soon(t), "nightly", LockOptions{TTL: ttl})
	var unknown x509.UnknownAuthorityError
	if !errors.Is(err, ErrUnreachable) || !errors.As(err, &unknown) {
		t.Fatalf("the error is %v", err)
	}
}

func TestANodeThatRequiresTLSIsNamedSo(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
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
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = conn.Write([]byte{tlsAlert, 3, 3, 0, 2, 2, 50})
			_ = conn.Close()
		}
	}()
	c := clientOf(t, Options{Patience: 200 * time.Millisecond}, listener.Addr().String())
	if _, err := c.Lock(soon(t), "nightly", LockOptions{TTL: ttl}); !errors.Is(err, errTLSRequired) {
		t.Fatalf("the error is %v", err)
	}
}

func TestBadOptionsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	for _, endpoints := range []string{"", ",", "localhost", "a b:1", "a:1 b", "ftp://a:1", "u@a:1"} {
		if _, err := NewClient(endpoints, Options{}); err == nil {
			t.Errorf("the endpoints %q are accepted", endpoints)
		}
	}
	if _, err := NewClient("a:1", Options{Token: "x"}); err == nil {
		t.Error("a token without TLS is accepted")
	}
	if _, err := NewClient("a:1", Options{Token: "x\n", TLS: &tls.Config{}}); err == nil {
		t.Error("a token with a line break is accepted")
	}
	c := clientOf(t, Options{}, "127.0.0.1:1")
	for _, options := range []LockOptions{
		{TTL: time.Millisecond}, {TTL: 25 * time.Hour}, {Wait: -1}, {Wait: 25 * time.Hour}, {Owner: "\xff"}, {Value: "\xff"},
	} {
		_, err := c.Lock(soon(t), "nightly", options)
		var refused *Refused
		if !errors.As(err, &refused) || refused.Code != "invalid" {
			t.Errorf("%+v: the error is %v", options, err)
		}
	}
	for _, keys := range [][]string{nil, {""}, {"\xff"}} {
		if _, err := c.LockAll(soon(t), keys, LockOptions{}); err == nil {
			t.Errorf("the keys %q are accepted", keys)
		}
	}
}
