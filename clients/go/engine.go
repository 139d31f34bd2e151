package palisade

import (
	"errors"
	"fmt"
	"time"
)

// The engine is the client's side of GET /v1/hold, from the first attempt to reach a node until the lock is released,
// lost or refused. It has no socket, clock, goroutine or lock: its runner tells it what has happened and when
// ([engine.opened], [engine.failed], [engine.received], [engine.alive], [engine.tick]) and what the caller wants
// ([engine.release], [engine.setValue]), and executes the actions it asks for ([engine.poll]). All moments are
// readings of one clock, and never go back.
//
// What it promises:
//
//   - A lease is counted from a reading of the clock before the frame was sent that the server has answered, and ends
//     early by a [margin]. So it ends before the server's does, and the caller has time to stop.
//   - The deadline comes before the news. Every input first compares the clock with the lease's end. A lease that has
//     ended stays ended, whatever arrives afterwards: a process that slept finds that the lock is lost.
//   - actionLost comes once, and never after a release.
type engine struct {
	claim   claim
	wait    time.Duration
	ttl     time.Duration
	random  func(n int64) int64
	route   route
	phase   phase
	link    linkState
	actions []action

	// waitEnd is when the wait for the lock is over, and giveUpAt when an acquire that was not answered fails: later than
	// waitEnd if the wait is so short that no node might be reached meanwhile.
	waitEnd  instant
	giveUpAt instant
	// releaseBy is when a release that was not answered is given up: no node keeps the session longer.
	releaseBy instant

	// The connection: when its attempt began or begins, when it was last heard, what was sent over it.
	attemptAt instant
	heardAt   instant
	pinged    bool
	greeted   bool
	confirmed bool
	renewed   bool
	askedAt   instant
	here      map[uint64]instant
	// failure is why the last connection or attempt ended, at the node failedAt.
	failure  error
	failedAt string
	// unknownTo counts the nodes in a row that do not know the client, and unknown is the refusal of the last of them.
	unknownTo int
	unknown   *Refused

	// The session: its credential, and when the newest answered frame was sent (countedFrom). serverEnd is when it ends
	// at the server at the latest, by this clock.
	session     string
	counted     bool
	countedFrom instant
	serverEnd   instant

	token    uint64
	signed   []string
	leaseEnd instant

	// How many release frames were sent, and when the newest was; and whether it was an acquire that was given up.
	releases   int
	releasedAt instant
	cancelled  bool

	// The values that no node has answered, in the caller's order. Only the first of them is sent.
	values    []proclamation
	nextValue uint64
}

type phase int

const (
	acquiring phase = iota
	holding
	releasing
	over
)

type linkState int

const (
	linkDown linkState = iota
	linkDialing
	linkOpen
)

type actionKind int

const (
	actionConnect    actionKind = iota // to address, within timeout
	actionSend                         // text
	actionPing                         // a ping of the WebSocket
	actionDisconnect                   // the connection, or the attempt
	actionGranted                      // token, signed
	actionRefused                      // err: the acquire has failed
	actionLost                         // err
	actionReleased                     // err: a LostError if the lock had been lost before the release, else nil
	actionProclaimed                   // n, err: the value was replaced, or not
)

type action struct {
	kind    actionKind
	address string
	timeout time.Duration
	text    []byte
	err     error
	n       uint64
}

// failure says why a connection, or the attempt to open one, has ended.
type failure struct {
	err error
	// refusal is the server's, if it answered.
	refusal *Refused
	// leader is the address that the server named as the leader's.
	leader string
}

const (
	// A lease leaves its caller a tenth of the TTL to stop, within these bounds.
	reactionPercent = 10
	minReaction     = 20 * time.Millisecond
	maxReaction     = time.Second
	// And it ends 2% earlier: the rates of this clock and of the leader's may each be 1% wrong.
	clockPercent = 2
	// An eighth of the TTL (1 / anotherNode) is left to ask another node, when the connected one renews no more.
	anotherNode = 8
	// serverPercent bounds the session's end at the server in the same way.
	serverPercent = 100 + clockPercent
	// answerGrace is how much longer than the wait the server's answer may take.
	answerGrace = time.Second
	// minReach is how long an acquire looks for a node at least, however short its wait is.
	minReach = time.Second
	// maxRelease is how long the client tries to withdraw an acquire that was cancelled or has failed.
	maxRelease = 30 * time.Second
	// maxOpenChecks bounds the memory for checks that were answered and whose renewals have not come.
	maxOpenChecks = 64
	// refusalPause comes before the next attempt after a node said, in a refusal or an interruption, that it has no space
	// or that it asks for fewer requests.
	refusalPause = time.Second
)

// retryable are the codes of a node that cannot answer now, where another node, or the same one in a moment, can.
var retryable = map[string]bool{
	"no_leader": true, "not_leader": true, "leadership_lost": true, "shutting_down": true, "overloaded": true,
	"change_not_ready": true,
}

// interruptions are those with which a node ends its connections, the lock being as it was.
var interruptions = map[string]bool{
	"no_leader": true, "not_leader": true, "leadership_lost": true, "shutting_down": true,
}

// patient are the codes of refusals that an acquire which waits sits out.
var patient = map[string]bool{"no_space": true, "too_soon": true}

// ended are the codes that say that the session, or its claim, is no more.
var ended = map[string]bool{"no_session": true, "not_holder": true, "gone": true}

// unknownClient are the codes of a node that does not know the client, for example because its file of bearer tokens is
// older than that of the other nodes.
var unknownClient = map[string]bool{"unauthenticated": true, "denied": true}

// newEngine begins an acquire. One that does not wait looks for a node for as long as patience; one that waits, for as
// long as it waits, and no less than minReach (or patience, if that is shorter).
func newEngine(at instant, c claim, endpoints []string, patience time.Duration, random func(int64) int64) *engine {
	e := &engine{
		claim: c, wait: time.Duration(c.Wait) * time.Millisecond, ttl: time.Duration(c.TTL) * time.Millisecond,
		random: random, route: route{endpoints: endpoints}, attemptAt: at, here: map[uint64]instant{},
	}
	e.waitEnd, e.giveUpAt = at.add(e.wait), at.add(patience)
	if e.wait > 0 {
		e.giveUpAt = latest(e.waitEnd, at.add(clamp(patience, 0, minReach)))
	}
	e.tick(at)
	return e
}

// poll takes the next action.
func (e *engine) poll() (action, bool) {
	if len(e.actions) == 0 {
		return action{}, false
	}
	next := e.actions[0]
	e.actions = e.actions[1:]
	return next, true
}

func (e *engine) push(a action) { e.actions = append(e.actions, a) }

// wakeup is when the next tick is due.
func (e *engine) wakeup() instant {
	due := never
	switch e.link {
	case linkDown:
		due = e.attemptAt
	case linkDialing:
		due = e.attemptAt.add(e.attemptTimeout())
	case linkOpen:
		due = earliest(e.deadAt(), e.renewalDue())
		if !e.pinged {
			due = earliest(due, e.heardAt.add(e.pingAfter()))
		}
	}
	switch e.phase {
	case acquiring:
		return earliest(due, e.acquireEnd())
	case holding:
		return earliest(due, e.leaseEnd)
	case releasing:
		return earliest(due, e.releaseBy)
	}
	return never
}

// tick looks at the clock.
func (e *engine) tick(at instant) {
	e.expire(at)
	if e.phase == acquiring && at >= e.acquireEnd() {
		e.giveUp(at)
	}
	if e.phase == releasing && at >= e.releaseBy {
		e.finishRelease(nil)
	}
	if e.phase == over {
		return
	}
	switch e.link {
	case linkDown:
		if at >= e.attemptAt {
			e.link, e.attemptAt = linkDialing, at
			e.push(action{kind: actionConnect, address: e.route.target(), timeout: e.attemptTimeout()})
		}
	case linkDialing:
		if at >= e.attemptAt.add(e.attemptTimeout()) {
			e.drop(at, failure{err: fmt.Errorf("no connection within %v", e.attemptTimeout())})
		}
	case linkOpen:
		if at >= e.deadAt() {
			e.drop(at, failure{err: fmt.Errorf("the node has not answered for %v", at.sub(e.deadSince()).Round(time.Millisecond))})
		} else if at >= e.renewalDue() {
			e.drop(at, failure{err: errors.New("the node has not renewed the lease")})
		} else if !e.pinged && at >= e.heardAt.add(e.pingAfter()) {
			e.pinged = true
			e.push(action{kind: actionPing})
		}
	}
}

// expire ends a lease whose time is over. Every input does this before it acts.
func (e *engine) expire(at instant) {
	if e.phase == holding && at >= e.leaseEnd {
		text := "no node has renewed the lease in time"
		if e.failure != nil {
			text = fmt.Sprintf("%s; the last attempt, at %s: %v", text, e.failedAt, e.failure)
		}
		e.lose(&LostError{Code: "expired", Message: text})
	}
}

// acquireEnd is when an acquire without an answer fails: a moment later if it stands in the queue of a node that is
// heard, because that node measures the wait and answers.
func (e *engine) acquireEnd() instant {
	if e.link == linkOpen {
		return e.giveUpAt.add(answerGrace)
	}
	return e.giveUpAt
}

// attemptTimeout bounds an attempt to open a connection, so that several fit into a lease.
func (e *engine) attemptTimeout() time.Duration {
	if e.phase == acquiring {
		return clamp(e.ttl/6, time.Second, 3*time.Second)
	}
	return clamp(e.ttl/6, 300*time.Millisecond, 3*time.Second)
}

// deadAt is when a connection that stays silent is given up: after one and a half intervals of the server's checks. The
// answer to the first frame of a held lock is awaited for a shorter time, because the lease runs out meanwhile, and that
// to a release, because the caller waits for it. A wait that is given up has little time: other nodes must get a try
// before the session is granted the lock.
func (e *engine) deadAt() instant {
	if e.phase == releasing && e.cancelled {
		return e.deadSince().add(clamp(e.ttl/6, 500*time.Millisecond, time.Second))
	}
	if e.phase == releasing {
		return e.deadSince().add(clamp(e.ttl/4, time.Second, 5*time.Second))
	}
	patience := clamp(e.ttl/2, time.Second, 25*time.Second)
	if !e.greeted {
		patience = clamp(e.ttl/2, time.Second, 10*time.Second)
		if e.phase == holding {
			patience = clamp(e.ttl/4, 500*time.Millisecond, 5*time.Second)
		}
	}
	return e.deadSince().add(patience)
}

// renewalDue is when to ask another node unless this one has renewed the lease: it may also talk and renew no more. The
// first renewal over a connection takes longer than the others, so that only those after it are waited for.
func (e *engine) renewalDue() instant {
	if e.phase != holding || !e.renewed {
		return never
	}
	return e.leaseEnd.add(-e.ttl / anotherNode)
}

// deadSince is when the connection would have died, if it is dead.
func (e *engine) deadSince() instant {
	if e.phase == releasing {
		return e.releasedAt
	}
	return e.heardAt
}

// pingAfter is the silence after which the client asks for a sign of life itself. With a long TTL the server's checks
// are rare.
func (e *engine) pingAfter() time.Duration {
	return clamp(e.ttl*2/5, 800*time.Millisecond, 10*time.Second)
}

// opened: the connection that was asked for is there.
func (e *engine) opened(at instant) {
	e.expire(at)
	if e.phase == over || e.link != linkDialing {
		return
	}
	e.link, e.heardAt, e.askedAt = linkOpen, at, at
	e.pinged, e.greeted, e.confirmed, e.renewed = false, false, false, false
	switch {
	case e.session != "":
		e.serverEnd = latest(e.serverEnd, e.endAtServer(at))
		e.push(action{kind: actionSend, text: frame("resume", e.resumption(at))})
		if e.phase == releasing {
			e.sendRelease(at)
		}
	case e.phase == releasing:
		e.finishRelease(nil)
	default:
		c := e.claim
		c.Wait = e.waitLeft(at)
		e.serverEnd = latest(e.serverEnd, e.endAtServer(at))
		e.push(action{kind: actionSend, text: frame("acquire", c)})
	}
}

func (e *engine) resumption(at instant) resumption {
	c := e.claim
	c.Wait = e.waitLeft(at)
	if e.token != 0 {
		// The grant keeps the value that it has: the one of the acquire may be older.
		c.Value = nil
	}
	return resumption{claim: c, Session: e.session, Token: e.token}
}

func (e *engine) waitLeft(at instant) int64 {
	if e.phase != acquiring || at >= e.waitEnd {
		return 0
	}
	left := e.waitEnd.sub(at).Milliseconds()
	if left == 0 {
		return 1
	}
	return left
}

func (e *engine) endAtServer(at instant) instant { return at.add(e.ttl / 100 * serverPercent) }

// failed: the connection, or the attempt to open one, has ended.
func (e *engine) failed(at instant, f failure) {
	e.expire(at)
	if e.phase == over || e.link == linkDown {
		return
	}
	e.closed(at, f)
}

// drop gives up the connection.
func (e *engine) drop(at instant, f failure) {
	e.push(action{kind: actionDisconnect})
	e.closed(at, f)
}

func (e *engine) closed(at instant, f failure) {
	// A node that refuses to open a connection has not read which session asks. One that does not know the client may say
	// so in answer to the resume.
	ofNode := e.link == linkDialing || f.refusal != nil && unknownClient[f.refusal.Code] && !e.greeted
	e.link = linkDown
	e.here = map[uint64]instant{}
	e.failure, e.failedAt = f.err, e.route.target()
	if f.refusal != nil {
		e.failure = f.refusal
		if e.settledBy(at, f.refusal, ofNode) {
			return
		}
	}
	if e.phase == releasing && e.session == "" {
		e.finishRelease(nil)
		return
	}
	pause := time.Duration(0)
	if e.route.failed(f.leader) {
		pause = e.route.backoff(e.random)
	}
	var told *Refused
	if errors.As(e.failure, &told) && patient[told.Code] && pause < refusalPause {
		pause = refusalPause
	}
	e.attemptAt = at.add(pause)
	e.tick(at)
}

// settledBy reports whether a refusal ends the acquire, the lock or the release. With ofNode it says nothing about the
// session, and another node may go on with that while it lives.
func (e *engine) settledBy(at instant, r *Refused, ofNode bool) bool {
	if retryable[r.Code] {
		return false
	}
	switch e.phase {
	case acquiring:
		if patient[r.Code] && e.wait > 0 {
			return false
		}
		if ended[r.Code] && e.session != "" {
			e.forgetSession()
			return false
		}
		if ofNode && e.session != "" && at < e.countedFrom.add(e.ttl) {
			return false
		}
		if ofNode && r.Code == "unauthenticated" {
			e.unknownTo, e.unknown = e.unknownTo+1, r
			// An endpoint leads to one such answer at the most before the next one is asked.
			if e.unknownTo < len(e.route.endpoints) {
				return false
			}
		}
		if r.Code == "held" && e.session != "" && e.wait > 0 && at >= e.waitEnd {
			r = &Refused{Code: "timeout", Message: r.Message, Body: r.Body}
		}
		e.refuse(r)
	case holding:
		// What else a node refuses (an identity that has ended, a limit) does not take the lock away: until the lease
		// ends, another node may go on with it.
		if !ended[r.Code] {
			return false
		}
		e.lose(&LostError{Code: r.Code, Message: r.Message})
	case releasing:
		if !ended[r.Code] {
			return false
		}
		e.endedDuringRelease(r.Code, r.Message)
	}
	return true
}

// forgetSession: the session has ended while the client was away, and its queue position with it.
func (e *engine) forgetSession() {
	e.session, e.token, e.counted, e.signed = "", 0, false, nil
}

// alive: the node has sent something that is no message (a ping or a pong).
func (e *engine) alive(at instant) {
	e.expire(at)
	if e.link == linkOpen {
		e.heardAt, e.pinged = at, false
	}
}

// received: the node has sent a message.
func (e *engine) received(at instant, text []byte) {
	e.expire(at)
	if e.phase == over || e.link != linkOpen {
		return
	}
	e.heardAt, e.pinged = at, false
	m, err := decode(text)
	if err == nil {
		err = e.handle(at, m)
	}
	if err != nil {
		e.drop(at, failure{err: err})
	}
}

// handle executes a message; an error means that it cannot come from a server that speaks this protocol.
func (e *engine) handle(at instant, m message) error {
	switch m.kind {
	case "waiting":
		return e.onWaiting(m)
	case "granted":
		return e.onGranted(m, at)
	case "check":
		e.onCheck(at, m.n)
	case "renewed":
		e.onRenewed(at, m)
	case "lost":
		e.onLost(at, m)
	case "released":
		if e.phase != releasing || e.releases == 0 {
			return fmt.Errorf("the server answered a release that was not sent")
		}
		e.finishRelease(nil)
	case "proclaimed":
		e.answerValue(m.n, nil)
	case "error":
		e.onError(at, m)
	case "interrupted":
		e.drop(at, failure{err: &Refused{Code: m.code, Message: m.text}, leader: m.leader})
	}
	return nil
}

func (e *engine) onWaiting(m message) error {
	if e.session != "" && e.session != m.session {
		return fmt.Errorf("the server answered with another session")
	}
	e.session = m.session
	e.greet(m.ttl)
	return nil
}

// greet: the node has answered the first frame of the connection, which has opened the session or renewed it.
func (e *engine) greet(ttl time.Duration) {
	e.greeted = true
	e.unknownTo, e.unknown = 0, nil
	e.count(e.askedAt, ttl)
}

// count notes that the node has answered a frame that was sent at this moment: the lease is counted from it.
func (e *engine) count(sent instant, ttl time.Duration) {
	// The server's word counts for a TTL that is shorter than the one that was asked for, never for a longer one.
	if ttl < e.ttl {
		e.ttl = ttl
	}
	if !e.counted || sent > e.countedFrom {
		e.counted, e.countedFrom = true, sent
	}
	if e.phase == holding {
		e.leaseEnd = latest(e.leaseEnd, e.countedFrom.add(e.ttl-margin(e.ttl)))
	}
}

func (e *engine) onGranted(m message, at instant) error {
	if e.session != "" && e.session != m.session {
		return fmt.Errorf("the server answered with another session")
	}
	if !e.sameKeys(m) {
		return fmt.Errorf("the server granted other keys than those that were asked for")
	}
	if e.token != 0 && e.token != m.token {
		return e.onOtherToken(m.token)
	}
	e.session = m.session
	e.greet(m.ttl)
	e.token = m.token
	if m.signed != nil {
		e.signed = e.inOrder(m)
	}
	e.confirmed = true
	switch e.phase {
	case acquiring:
		e.deliver(at)
	case holding:
		e.sendValue()
	}
	return nil
}

// onOtherToken: the session has the lock by another grant. What the caller holds is the earlier one.
func (e *engine) onOtherToken(token uint64) error {
	if e.phase != holding {
		return fmt.Errorf("the server granted token %d after token %d", token, e.token)
	}
	e.lose(&LostError{Code: "not_holder", Message: fmt.Sprintf("the session holds the lock by another grant, %d", token)})
	return nil
}

func (e *engine) sameKeys(m message) bool {
	if e.claim.Key != "" || len(e.claim.Keys) == 1 {
		want := e.claim.Key
		if want == "" {
			want = e.claim.Keys[0]
		}
		return m.key == want || m.key == "" && len(m.keys) == 1 && m.keys[0] == want
	}
	if len(m.keys) != len(e.claim.Keys) {
		return false
	}
	granted := map[string]bool{}
	for _, key := range m.keys {
		granted[key] = true
	}
	for _, key := range e.claim.Keys {
		if !granted[key] {
			return false
		}
	}
	return true
}

// inOrder has the signed tokens of a grant in the order of the claim's keys; the server's order may be another one. There
// are none if the server did not sign each key: a token beside the wrong key would be worse.
func (e *engine) inOrder(m message) []string {
	if len(e.claim.Keys) < 2 {
		return m.signed
	}
	if len(m.signed) != len(m.keys) {
		return nil
	}
	of := map[string]string{}
	for i, key := range m.keys {
		of[key] = m.signed[i]
	}
	var signed []string
	for _, key := range e.claim.Keys {
		signed = append(signed, of[key])
	}
	return signed
}

// deliver hands the grant to the caller as soon as its lease has time left. A grant that comes after an interruption may
// have none until the next renewal.
func (e *engine) deliver(at instant) {
	e.leaseEnd = e.countedFrom.add(e.ttl - margin(e.ttl))
	if at >= e.leaseEnd {
		return
	}
	e.phase, e.failure = holding, nil
	e.push(action{kind: actionGranted})
}

// onCheck answers that this process runs. The answer's time is noted before it is sent.
func (e *engine) onCheck(at instant, n uint64) {
	if e.phase != acquiring && e.phase != holding {
		return
	}
	if len(e.here) == maxOpenChecks {
		e.here = map[uint64]instant{}
	}
	e.here[n] = at
	e.serverEnd = latest(e.serverEnd, e.endAtServer(at))
	e.push(action{kind: actionSend, text: frame("here", n)})
}

func (e *engine) onRenewed(at instant, m message) {
	sent, known := e.here[m.n]
	if !known {
		return
	}
	for n := range e.here {
		if n <= m.n {
			delete(e.here, n)
		}
	}
	e.route.succeeded()
	e.failure, e.renewed = nil, true
	e.count(sent, m.ttl)
	if e.phase == acquiring && e.token != 0 {
		e.deliver(at)
	}
}

func (e *engine) onLost(at instant, m message) {
	switch e.phase {
	case acquiring:
		// The session of an earlier connection has ended, and its queue position with it. Begin anew.
		e.forgetSession()
		e.drop(at, failure{err: &Refused{Code: m.code, Message: m.text}})
	case holding:
		e.lose(&LostError{Code: m.code, Message: m.text})
	case releasing:
		e.endedDuringRelease(m.code, m.text)
	}
}

func (e *engine) onError(at instant, m message) {
	refusal := &Refused{Code: m.code, Message: m.text, Body: m.body}
	if m.hasN {
		e.answerValue(m.n, refusal)
		return
	}
	if m.code == "invalid" && e.confirmed && len(e.values) > 0 {
		// The node could not read a frame. The value that was sent over this connection would be refused again and again.
		e.endValue(refusal)
	}
	e.drop(at, failure{err: refusal, refusal: refusal, leader: m.leader})
}

// release gives the lock back, or gives up the acquire.
func (e *engine) release(at instant) {
	e.expire(at)
	switch e.phase {
	case acquiring:
		e.cancelled = true
		e.releaseBy = at.add(clamp(e.ttl, 0, maxRelease))
	case holding:
		e.releaseBy = latest(e.serverEnd, at)
	default:
		return
	}
	e.phase = releasing
	e.failValues(ErrReleased)
	switch {
	case e.link == linkOpen:
		e.sendRelease(at)
	case e.session == "":
		e.finishRelease(nil)
	}
	e.tick(at)
}

func (e *engine) sendRelease(at instant) {
	e.releases++
	e.releasedAt = at
	e.push(action{kind: actionSend, text: frame("release", struct{}{})})
}

// endedDuringRelease: the server knows no such grant any more. If it may have executed a release whose answer was
// lost, that was the release; the first release finds the lock lost before.
func (e *engine) endedDuringRelease(code, text string) {
	if e.cancelled || e.releases > 1 {
		e.finishRelease(nil)
		return
	}
	e.finishRelease(&LostError{Code: code, Message: text})
}

func (e *engine) finishRelease(lost *LostError) {
	e.end()
	if lost != nil {
		e.push(action{kind: actionReleased, err: lost})
		return
	}
	e.push(action{kind: actionReleased})
}

func (e *engine) lose(lost *LostError) {
	e.end()
	e.failValues(lost)
	e.push(action{kind: actionLost, err: lost})
}

// abandon ends a lock that its caller has found expired.
func (e *engine) abandon() {
	e.end()
	e.failValues(ErrLost)
}

func (e *engine) refuse(err error) {
	e.end()
	e.push(action{kind: actionRefused, err: err})
}

func (e *engine) end() {
	e.phase = over
	if e.link != linkDown {
		e.link = linkDown
		e.push(action{kind: actionDisconnect})
	}
}

// giveUp fails an acquire whose time is over. If a node may still grant it, now or after a reconnect, it is told not to.
func (e *engine) giveUp(at instant) {
	var err error = &UnreachableError{Endpoint: e.failedAt, Err: e.failure}
	if e.failure == nil {
		err = &UnreachableError{Endpoint: e.route.target()}
	}
	var refused *Refused
	if e.session != "" {
		err = &Refused{Code: "timeout", Message: "the wait is over, and no node has answered"}
	} else if e.unknown != nil {
		err = e.unknown
	} else if errors.As(e.failure, &refused) && patient[refused.Code] {
		err = refused
	}
	if e.link != linkOpen && e.session == "" {
		e.refuse(err)
		return
	}
	e.push(action{kind: actionRefused, err: err})
	e.release(at)
}

// setValue replaces the value of the grant. The answer is an actionProclaimed with the same number.
func (e *engine) setValue(at instant, value string) uint64 {
	e.nextValue++
	n := e.nextValue
	if e.phase != holding {
		e.push(action{kind: actionProclaimed, n: n, err: ErrReleased})
		return n
	}
	e.values = append(e.values, proclamation{N: n, Value: value})
	// If the lease has ended, the loss is the answer.
	e.expire(at)
	if len(e.values) == 1 {
		e.sendValue()
	}
	return n
}

// sendValue sends the oldest value. The next one is sent when that is answered: a repetition after a reconnect must not
// undo a later value.
func (e *engine) sendValue() {
	if len(e.values) > 0 && e.link == linkOpen && e.confirmed {
		e.push(action{kind: actionSend, text: frame("value", e.values[0])})
	}
}

func (e *engine) answerValue(n uint64, refusal *Refused) {
	if len(e.values) == 0 || e.values[0].N != n {
		return
	}
	if refusal != nil && interruptions[refusal.Code] {
		// The node ends the connection, and the value is sent again over the next one.
		return
	}
	e.endValue(refusal)
	e.sendValue()
}

// endValue answers the oldest value: it was replaced, or a node refuses it.
func (e *engine) endValue(refusal *Refused) {
	answer := action{kind: actionProclaimed, n: e.values[0].N}
	if refusal != nil {
		answer.err = refusal
	}
	e.values = e.values[1:]
	e.push(answer)
}

func (e *engine) failValues(err error) {
	for _, value := range e.values {
		e.push(action{kind: actionProclaimed, n: value.N, err: err})
	}
	e.values = nil
}

// margin is how long before its nominal end a lease counts as over, as in the other clients (docs/protocol.md, "Cluster
// time").
func margin(ttl time.Duration) time.Duration {
	return clamp(ttl/100*reactionPercent, minReaction, maxReaction) + ttl/100*clockPercent
}

func clamp(d, least, most time.Duration) time.Duration {
	if d < least {
		return least
	}
	if d > most {
		return most
	}
	return d
}
