package palisade

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"
)

// A runner drives the engine of one lock: it owns the clock, the timer and the connection. Everything that happens to
// the engine happens on its goroutine, in run.
type runner struct {
	client   *Client
	lock     *Lock
	engine   *engine
	events   chan linkEvent
	commands chan func(at instant)
	poke     chan struct{}

	// result has the outcome of the acquire: nil for a grant.
	result chan error
	// done is closed when the runner and everything that it started have ended. releaseErr is written before.
	done       chan struct{}
	releaseErr error

	link    *link
	links   sync.WaitGroup
	answers map[uint64]chan error
}

func newRunner(c *Client, l *Lock, asked claim) *runner {
	return &runner{
		client: c, lock: l,
		engine:   newEngine(now(), asked, c.endpoints, c.options.Patience, randomBelow),
		events:   make(chan linkEvent),
		commands: make(chan func(instant)),
		poke:     make(chan struct{}, 1),
		result:   make(chan error, 1),
		done:     make(chan struct{}),
		answers:  map[uint64]chan error{},
	}
}

// randomBelow is a number from 0 to n - 1. math/rand begins with the same numbers in every process before Go 1.20.
func randomBelow(n int64) int64 {
	var bytes [8]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		return n / 2
	}
	return int64(binary.BigEndian.Uint64(bytes[:]) % uint64(n))
}

func (r *runner) run() {
	defer close(r.done)
	defer r.links.Wait()
	defer r.stopLink()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	r.carryOut()
	for r.engine.phase != over {
		resetTimer(timer, r.sleep())
		select {
		case event := <-r.events:
			if event.link == r.link {
				r.take(event)
			}
		case command := <-r.commands:
			command(now())
		case <-timer.C:
			r.engine.tick(now())
		case <-r.poke:
			r.engine.tick(now())
		}
		r.carryOut()
	}
}

// sleep is the time until the next look at the clock.
func (r *runner) sleep() time.Duration {
	return clamp(r.engine.wakeup().sub(now()), 0, recheckEvery)
}

func resetTimer(timer *time.Timer, d time.Duration) {
	if !timer.Stop() {
		select {
		case <-timer.C:
		default:
		}
	}
	timer.Reset(d)
}

func (r *runner) take(event linkEvent) {
	switch event.kind {
	case linkOpened:
		r.engine.opened(now())
	case linkMessage:
		r.engine.received(now(), event.text)
	case linkAlive:
		r.engine.alive(now())
	case linkEnded:
		r.stopLink()
		r.engine.failed(now(), event.failure)
	}
}

// carryOut does what the engine asks for. The lease is published before the news, so that a lock is valid when its
// grant is known.
func (r *runner) carryOut() {
	if r.engine.phase == holding && !r.lock.extend(r.engine.leaseEnd) {
		r.engine.abandon()
	}
	for {
		next, some := r.engine.poll()
		if !some {
			return
		}
		switch next.kind {
		case actionConnect:
			r.stopLink()
			r.link = r.client.startLink(next.address, next.timeout, r.events, &r.links)
		case actionSend:
			r.send(opText, next.text)
		case actionPing:
			r.send(opPing, nil)
		case actionDisconnect:
			r.stopLink()
		case actionGranted:
			r.lock.grant(r.engine.token, r.engine.signed, r.engine.leaseEnd)
			r.tellResult(nil)
		case actionRefused:
			r.tellResult(next.err)
		case actionLost:
			r.lost(next.err.(*LostError))
		case actionReleased:
			r.releaseErr = next.err
			r.tellResult(ErrReleased)
		case actionProclaimed:
			r.answerValue(next.n, next.err)
		}
	}
}

// lost tells the caller of the loss, unless the lock counts as released already. Then the caller's Release returns a loss
// that the server has told of, because the release has come too late. If the lease has ended by the clock meanwhile, no
// release is sent, and the lock is free when its TTL is over.
func (r *runner) lost(lost *LostError) {
	if !r.lock.lose(lost) && lost.Code != "expired" {
		r.releaseErr = lost
	}
}

// tellResult tells the outcome of the acquire, once.
func (r *runner) tellResult(err error) {
	select {
	case r.result <- err:
	default:
	}
}

func (r *runner) send(op opcode, payload []byte) {
	if r.link != nil && !r.link.send(op, payload) {
		r.stopLink()
		r.engine.failed(now(), failure{err: errNotReading})
	}
}

func (r *runner) stopLink() {
	if r.link != nil {
		r.link.stop()
		r.link = nil
	}
}

func (r *runner) answerValue(n uint64, err error) {
	if answer, waits := r.answers[n]; waits {
		delete(r.answers, n)
		answer <- err
	}
}

// command runs f on the runner's goroutine. It reports false if the runner has ended.
func (r *runner) command(f func(at instant)) bool {
	select {
	case r.commands <- f:
		return true
	case <-r.done:
		return false
	}
}

// release begins the release, or gives up the acquire. It does not block for long: the runner never waits for a node.
func (r *runner) release() { r.command(r.engine.release) }

// wake makes the runner look at the clock.
func (r *runner) wake() {
	select {
	case r.poke <- struct{}{}:
	default:
	}
}
