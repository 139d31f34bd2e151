package palisade

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"
)

// The engine is tested with a clock of the test's own: every moment is an argument.

const second = instant(time.Second)

// ms is a moment, in milliseconds after the start of the test.
func ms(n int) instant { return instant(time.Duration(n) * time.Millisecond) }

// session plays everything around one engine.
type session struct {
	t *testing.T
	*engine
}

func request(ttl, wait time.Duration) claim {
	return claim{Key: "nightly", TTL: ttl.Milliseconds(), Wait: wait.Milliseconds(), Owner: "w"}
}

// begin starts an acquire at the moment 0, with two endpoints a:1 and b:1.
func begin(t *testing.T, c claim) session {
	t.Helper()
	s := session{t, newEngine(0, c, []string{"a:1", "b:1"}, 10*time.Second, func(n int64) int64 { return n - 1 })}
	s.expect("connect a:1")
	return s
}

// held starts an acquire that is granted at the moment 10 ms, sent at 0, with a TTL of 3 s.
func held(t *testing.T) session {
	t.Helper()
	s := begin(t, request(3*time.Second, 0))
	s.opened(0)
	s.expect("send acquire")
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.hears(10, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.expect("granted")
	return s
}

func (s session) hears(at int, text string) {
	s.t.Helper()
	s.received(ms(at), []byte(text))
}

// names drains the actions, as words.
func (s session) names() []string {
	var names []string
	for next, some := s.poll(); some; next, some = s.poll() {
		names = append(names, describe(next))
	}
	return names
}

func describe(a action) string {
	switch a.kind {
	case actionConnect:
		return "connect " + a.address
	case actionSend:
		var kinds map[string]json.RawMessage
		if json.Unmarshal(a.text, &kinds) != nil || len(kinds) != 1 {
			return "send garbage"
		}
		for kind := range kinds {
			return "send " + kind
		}
	case actionPing:
		return "ping"
	case actionDisconnect:
		return "disconnect"
	case actionGranted:
		return "granted"
	case actionRefused:
		var refused *Refused
		if errors.As(a.err, &refused) && !errors.Is(a.err, ErrUnreachable) {
			return "refused " + refused.Code
		}
		return "unreachable"
	case actionLost:
		return "lost " + a.err.(*LostError).Code
	case actionReleased:
		if a.err != nil {
			return "released: lost " + a.err.(*LostError).Code
		}
		return "released"
	case actionProclaimed:
		return fmt.Sprintf("proclaimed %d %v", a.n, a.err)
	}
	return "?"
}

func (s session) expect(want ...string) {
	s.t.Helper()
	if got := s.names(); strings.Join(got, ", ") != strings.Join(want, ", ") {
		s.t.Fatalf("the engine asked for %q; the test expects %q", got, want)
	}
}

// sent takes the next action, a frame, and returns its content.
func (s session) sent(kind string) map[string]any {
	s.t.Helper()
	next, some := s.poll()
	if !some || next.kind != actionSend {
		s.t.Fatalf("the engine sends no %q", kind)
	}
	var kinds map[string]map[string]any
	if err := json.Unmarshal(next.text, &kinds); err != nil || kinds[kind] == nil {
		s.t.Fatalf("the engine sent %s, not a %q", next.text, kind)
	}
	return kinds[kind]
}

func (s session) leaseEnds(at instant) {
	s.t.Helper()
	if s.leaseEnd != at {
		s.t.Fatalf("the lease ends at %v, not at %v", time.Duration(s.leaseEnd), time.Duration(at))
	}
}

func TestTheAcquireHasNoFieldThatWasNotSet(t *testing.T) {
	s := begin(t, request(3*time.Second, 2*time.Second))
	s.opened(ms(500))
	got := s.sent("acquire")
	want := map[string]any{"key": "nightly", "ttl_ms": 3000.0, "wait_ms": 1500.0, "owner": "w"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("sent %v, not %v", got, want)
	}
}

func TestALeaseCountsFromTheSendingOfTheAcquireAndEndsEarly(t *testing.T) {
	s := held(t)
	s.leaseEnds(ms(2640))
}

func TestALeaseLeavesTimeToStopAndForTheRatesOfClocks(t *testing.T) {
	for _, c := range []struct{ ttl, reaction time.Duration }{
		{100 * time.Millisecond, 20 * time.Millisecond},
		{time.Second, 100 * time.Millisecond},
		{30 * time.Second, time.Second},
		{24 * time.Hour, time.Second},
	} {
		if got, want := margin(c.ttl), c.reaction+c.ttl/50; got != want {
			t.Errorf("the margin of %v is %v, not %v", c.ttl, got, want)
		}
	}
}

func TestARenewalCountsFromTheSendingOfItsHere(t *testing.T) {
	s := held(t)
	s.hears(1000, `{"check":{"n":1}}`)
	s.expect("send here")
	s.leaseEnds(ms(2640))
	s.hears(1900, `{"renewed":{"n":1,"ttl_ms":3000}}`)
	s.leaseEnds(ms(3640))
}

func TestARenewalOfAnUnansweredCheckIsIgnored(t *testing.T) {
	s := held(t)
	s.hears(1000, `{"renewed":{"n":1,"ttl_ms":3000}}`)
	s.leaseEnds(ms(2640))
	s.expect()
}

func TestARenewalOfAnEarlierConnectionIsIgnored(t *testing.T) {
	s := held(t)
	s.hears(1000, `{"check":{"n":1}}`)
	s.failed(ms(1100), failure{err: errors.New("cut")})
	s.expect("send here", "connect b:1")
	s.opened(ms(1200))
	s.hears(1300, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.leaseEnds(ms(1200 + 2640))
	s.hears(1400, `{"check":{"n":1}}`)
	s.hears(1500, `{"renewed":{"n":2,"ttl_ms":3000}}`)
	s.leaseEnds(ms(1200 + 2640))
	s.hears(1600, `{"renewed":{"n":1,"ttl_ms":3000}}`)
	s.leaseEnds(ms(1400 + 2640))
}

func TestATTLIsNeverTakenForLongerThanAskedFor(t *testing.T) {
	s := held(t)
	s.hears(1000, `{"check":{"n":1}}`)
	s.hears(1010, `{"renewed":{"n":1,"ttl_ms":60000}}`)
	s.leaseEnds(ms(3640))
}

func TestALeaseCountsFromTheSendingOfAnAnsweredResume(t *testing.T) {
	s := held(t)
	s.failed(ms(2000), failure{err: errors.New("cut")})
	s.expect("connect b:1")
	s.opened(ms(2100))
	got := s.sent("resume")
	if got["session"] != "s1" || got["token"] != 17.0 {
		t.Fatalf("the resume names another grant: %v", got)
	}
	s.leaseEnds(ms(2640))
	s.hears(2620, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.leaseEnds(ms(2100 + 2640))
	s.hears(3130, `{"check":{"n":1}}`)
	s.hears(3140, `{"renewed":{"n":1,"ttl_ms":3000}}`)
	s.expect("send here")
	s.leaseEnds(ms(3130 + 2640))
}

func TestAGrantAfterAWaitCountsFromTheNewestRenewedHere(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	for n := 1; n <= 4; n++ {
		s.hears(n*1000, fmt.Sprintf(`{"check":{"n":%d}}`, n))
	}
	s.hears(3001, `{"renewed":{"n":3,"ttl_ms":3000}}`)
	s.expect("send acquire", "send here", "send here", "send here", "send here")
	s.hears(4500, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.expect("granted")
	s.leaseEnds(ms(5640))
}

func TestAGrantWhoseLeaseHasEndedWaitsForARenewal(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.hears(3100, `{"check":{"n":1}}`)
	s.hears(3200, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.expect("send acquire", "send here")
	s.hears(3300, `{"renewed":{"n":1,"ttl_ms":3000}}`)
	s.expect("granted")
	s.leaseEnds(ms(5740))
}

func TestANodeThatRenewsNoMoreLeavesTimeToAskAnotherOne(t *testing.T) {
	s := held(t)
	s.hears(1000, `{"check":{"n":1}}`)
	s.hears(1100, `{"renewed":{"n":1,"ttl_ms":3000}}`)
	s.expect("send here")
	s.alive(ms(2000))
	s.alive(ms(3000))
	if due := s.wakeup(); due != ms(3265) {
		t.Fatalf("the engine sleeps until %v", time.Duration(due))
	}
	s.tick(ms(3265))
	s.expect("disconnect", "connect b:1")
	if s.phase != holding {
		t.Fatal("the lock is lost before its lease has ended")
	}
}

func TestALockIsLostAtTheEndOfItsLeaseThoughTheNodeIsSilent(t *testing.T) {
	s := held(t)
	for at := s.wakeup(); s.phase == holding; at = s.wakeup() {
		if at > ms(2640) {
			t.Fatalf("the engine sleeps until %v, beyond the end of its lease", time.Duration(at))
		}
		s.tick(at)
		if s.link == linkDialing {
			s.opened(at)
		}
	}
	names := s.names()
	if last := names[len(names)-1]; last != "lost expired" {
		t.Fatalf("the engine asked for %q", names)
	}
}

func TestNewsAfterTheEndOfTheLeaseComesTooLate(t *testing.T) {
	s := held(t)
	s.hears(1000, `{"check":{"n":1}}`)
	s.expect("send here")
	// The process was paused; the renewal was in the socket all the time.
	s.hears(2650, `{"renewed":{"n":1,"ttl_ms":3000}}`)
	s.expect("disconnect", "lost expired")
	s.hears(2660, `{"lost":{"error":"no_session","message":"m"}}`)
	s.tick(ms(9000))
	s.release(ms(9000))
	s.expect()
}

func TestTheServersLossIsToldOnce(t *testing.T) {
	s := held(t)
	s.hears(500, `{"lost":{"error":"not_holder","message":"broken by an operator"}}`)
	s.expect("disconnect", "lost not_holder")
	s.hears(600, `{"lost":{"error":"not_holder","message":"broken by an operator"}}`)
	s.tick(ms(5000))
	s.expect()
}

func TestAnotherGrantOfTheSessionIsALoss(t *testing.T) {
	s := held(t)
	s.failed(ms(100), failure{err: errors.New("cut")})
	s.opened(ms(200))
	s.hears(300, `{"granted":{"key":"nightly","token":18,"session":"s1","ttl_ms":3000}}`)
	s.expect("connect b:1", "send resume", "disconnect", "lost not_holder")
}

func TestASilentConnectionIsGivenUp(t *testing.T) {
	s := held(t)
	s.tick(ms(1209))
	s.expect()
	s.tick(ms(1210))
	s.expect("ping")
	s.tick(ms(1509))
	s.expect()
	s.tick(ms(1510))
	s.expect("disconnect", "connect b:1")
}

func TestAPongKeepsTheConnection(t *testing.T) {
	s := held(t)
	s.tick(ms(1210))
	s.alive(ms(1220))
	s.tick(ms(1510))
	s.expect("ping")
}

func TestAnAttemptThatHangsIsGivenUp(t *testing.T) {
	s := held(t)
	s.failed(ms(1000), failure{err: errors.New("cut")})
	s.tick(ms(1499))
	s.expect("connect b:1")
	s.tick(ms(1500))
	// Both endpoints have failed: a pause of 50 to 100 ms.
	s.expect("disconnect")
	s.tick(ms(1600))
	s.expect("connect a:1")
}

func TestAFollowerLeadsToTheLeader(t *testing.T) {
	s := begin(t, request(3*time.Second, 0))
	s.failed(ms(10), failure{refusal: &Refused{Code: "not_leader"}, leader: "c:1"})
	s.expect("connect c:1")
	s.opened(ms(20))
	s.expect("send acquire")
	s.hears(30, `{"interrupted":{"error":"leadership_lost","message":"m","leader":{"id":2,"client_addr":"b:1"}}}`)
	s.expect("disconnect", "connect b:1")
}

func TestNodesThatNameOneAnotherAreNotFollowedForEver(t *testing.T) {
	s := begin(t, request(3*time.Second, 0))
	attempts := 0
	for at := ms(0); at == 0; attempts++ {
		other := map[string]string{"a:1": "b:1", "b:1": "a:1"}[s.route.target()]
		s.failed(at, failure{refusal: &Refused{Code: "not_leader"}, leader: other})
		if s.link == linkDown {
			break
		}
		if attempts > 20 {
			t.Fatal("the engine follows redirects without a pause")
		}
	}
}

func TestNodesThatAnswerAndFailInTurnsAreNotAskedWithoutPause(t *testing.T) {
	s := begin(t, request(3*time.Second, time.Minute))
	for attempts := 0; s.link != linkDown; attempts++ {
		s.opened(0)
		s.hears(0, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
		other := map[string]string{"a:1": "b:1", "b:1": "a:1"}[s.route.target()]
		s.hears(0, `{"interrupted":{"error":"no_leader","message":"m","leader":{"id":1,"client_addr":"`+other+`"}}}`)
		if attempts > 20 {
			t.Fatal("the engine reconnects without a pause")
		}
	}
}

func TestAnInterruptionThatAsksForFewerRequestsIsFollowedByAPause(t *testing.T) {
	for _, leader := range []string{`null`, `{"id":2,"client_addr":"b:1"}`} {
		s := begin(t, request(3*time.Second, 20*time.Second))
		s.opened(0)
		s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
		s.hears(100, `{"interrupted":{"error":"too_soon","message":"m","leader":`+leader+`}}`)
		s.tick(ms(1099))
		s.expect("send acquire", "disconnect")
		s.tick(ms(1100))
		s.expect("connect b:1")
		s.opened(ms(1110))
		s.expect("send resume")
	}
}

func TestARefusalIsHandedOver(t *testing.T) {
	s := begin(t, request(3*time.Second, 0))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.hears(20, `{"error":{"error":"held","message":"m","holder":{"owner":"x","token":3},"queue":0}}`)
	s.expect("send acquire", "disconnect", "refused held")
}

func TestAnAcquireThatDoesNotWaitFailsAfterItsPatience(t *testing.T) {
	s := begin(t, request(3*time.Second, 0))
	var names []string
	at := ms(0)
	for s.phase == acquiring {
		s.failed(at, failure{refusal: &Refused{Code: "no_leader"}})
		at = s.wakeup()
		s.tick(at)
		names = append(names, s.names()...)
	}
	if at != ms(10000) || names[len(names)-1] != "unreachable" || len(names) < 20 {
		t.Fatalf("ended at %v with %q", time.Duration(at), names)
	}
}

func TestAShortWaitLooksForANodeForASecond(t *testing.T) {
	s := begin(t, request(3*time.Second, 50*time.Millisecond))
	var names []string
	at := ms(0)
	for s.phase == acquiring {
		s.failed(at, failure{refusal: &Refused{Code: "no_leader"}})
		at = s.wakeup()
		s.tick(at)
		names = append(names, s.names()...)
	}
	if at != ms(1000) || names[len(names)-1] != "unreachable" {
		t.Fatalf("ended at %v with %q", time.Duration(at), names)
	}
}

func TestAShortWaitIsOverWhenItsNodeIsFoundLate(t *testing.T) {
	s := begin(t, request(3*time.Second, 50*time.Millisecond))
	s.opened(ms(800))
	if got := s.sent("acquire"); got["wait_ms"] != 0.0 {
		t.Fatalf("the wait is over, and the acquire asks for %v ms", got["wait_ms"])
	}
	s.hears(810, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.hears(820, `{"error":{"error":"held","message":"m"}}`)
	s.expect("disconnect", "refused timeout")
}

func TestAPatienceOfLessThanASecondCountsForAShortWait(t *testing.T) {
	short := request(3*time.Second, 50*time.Millisecond)
	s := session{t, newEngine(0, short, []string{"a:1"}, 200*time.Millisecond, func(n int64) int64 { return n - 1 })}
	s.tick(ms(199))
	s.expect("connect a:1")
	s.tick(ms(200))
	s.expect("disconnect", "unreachable")
}

func TestAWaitThatNoNodeAnswersEnds(t *testing.T) {
	s := begin(t, request(3*time.Second, 2*time.Second))
	s.opened(ms(100))
	s.hears(110, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.alive(ms(1500))
	s.alive(ms(2900))
	s.expect("send acquire")
	// The node measures the wait, too, so its answer has a second more.
	s.tick(ms(2999))
	s.expect()
	s.tick(ms(3000))
	s.expect("refused timeout", "send release")
	s.hears(3100, `{"released":{}}`)
	s.expect("disconnect", "released")
}

func TestAWaitEndsWithoutAConnection(t *testing.T) {
	s := begin(t, request(3*time.Second, 2*time.Second))
	s.tick(ms(500))
	s.tick(ms(1000))
	s.names()
	for at := s.wakeup(); s.phase != over; at = s.wakeup() {
		s.tick(at)
	}
	names := s.names()
	if names[len(names)-1] != "unreachable" {
		t.Fatalf("the engine asked for %q", names)
	}
}

func TestAWaitThatEndsWithoutAConnectionIsWithdrawn(t *testing.T) {
	for _, lateness := range []int{0, 50} {
		s := begin(t, request(30*time.Second, 2*time.Second))
		s.opened(0)
		s.hears(10, `{"waiting":{"session":"s1","ttl_ms":30000}}`)
		s.failed(ms(1900), failure{err: errors.New("cut")})
		s.expect("send acquire", "connect b:1")
		if lateness > 0 {
			// Both endpoints have failed: the end of the wait comes in the pause before the next attempt.
			s.failed(ms(1950), failure{err: errors.New("refused")})
			s.expect()
		}
		s.tick(ms(2000))
		s.expect("refused timeout")
		if lateness > 0 {
			s.tick(ms(2000 + lateness))
			s.expect("connect a:1")
		}
		// The session that was opened may be granted the lock: it is released as soon as a node can be reached.
		s.opened(ms(2100))
		s.expect("send resume", "send release")
		s.hears(2110, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":30000}}`)
		s.hears(2120, `{"released":{}}`)
		s.expect("disconnect", "released")
	}
}

func TestAWaitThatNoNodeLetsGoEndsWithItsTTL(t *testing.T) {
	s := begin(t, request(3*time.Second, 2*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.failed(ms(1900), failure{err: errors.New("cut")})
	at := ms(2000)
	for s.tick(at); s.phase != over; s.tick(at) {
		at = s.wakeup()
	}
	if at != ms(5000) {
		t.Fatalf("the client has tried until %v", time.Duration(at))
	}
	if names := s.names(); names[len(names)-1] != "released" {
		t.Fatalf("the engine asked for %q", names)
	}
}

func TestAWaiterResumesItsQueuePosition(t *testing.T) {
	c := request(3*time.Second, 10*time.Second)
	value := "v"
	c.Value = &value
	s := begin(t, c)
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.failed(ms(4000), failure{err: errors.New("cut")})
	s.expect("send acquire", "connect b:1")
	s.opened(ms(4100))
	got := s.sent("resume")
	if _, some := got["token"]; some || got["session"] != "s1" || got["wait_ms"] != 5900.0 || got["value"] != "v" {
		t.Fatalf("sent the resume %v", got)
	}
}

func TestAWaiterThatOneNodeRefusesGoesOnAtAnother(t *testing.T) {
	for _, code := range []string{"unauthenticated", "wrong_host", "http_404"} {
		s := begin(t, request(3*time.Second, 20*time.Second))
		s.opened(0)
		s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
		s.failed(ms(100), failure{err: errors.New("cut")})
		s.failed(ms(110), failure{refusal: &Refused{Code: code}})
		s.expect("send acquire", "connect b:1")
		s.tick(ms(300))
		s.opened(ms(300))
		s.expect("connect a:1", "send resume")
		// The node has read the resume, and does not know this client.
		s.hears(310, `{"error":{"error":"denied","message":"m"}}`)
		s.expect("disconnect", "connect b:1")
		s.opened(ms(320))
		s.hears(330, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
		s.expect("send resume", "granted")
	}
}

func TestAWaiterThatAllNodesRefuseEndsWithItsSession(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.failed(ms(100), failure{err: errors.New("cut")})
	at := ms(100)
	for s.phase == acquiring {
		s.failed(at, failure{refusal: &Refused{Code: "unauthenticated"}})
		if s.link == linkDown && s.phase == acquiring {
			at = s.attemptAt
			s.tick(at)
		}
	}
	names := s.names()
	if last := names[len(names)-1]; last != "refused unauthenticated" {
		t.Fatalf("ended with %q", names)
	}
	if at < ms(3000) || at > ms(3500) {
		t.Fatalf("the last attempt was at %v", time.Duration(at))
	}
}

func TestARefusalAfterTheSessionWasOpenedIsHandedOver(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.hears(20, `{"error":{"error":"denied","message":"m"}}`)
	s.expect("send acquire", "disconnect", "refused denied")
}

func TestAnAcquireWithoutASessionFailsWithTheFirstRefusal(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.failed(ms(10), failure{refusal: &Refused{Code: "denied"}})
	s.expect("refused denied")
}

// Goal: a node whose file of bearer tokens is older than that of the others does not end an acquire.
func TestAnAcquireAsksAllNodesWhetherTheyKnowItsClient(t *testing.T) {
	unknown := failure{refusal: &Refused{Code: "unauthenticated"}}
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.failed(ms(10), unknown)
	s.expect("connect b:1")
	s.failed(ms(20), unknown)
	s.expect("refused unauthenticated")

	s = begin(t, request(3*time.Second, 20*time.Second))
	s.failed(ms(10), unknown)
	s.opened(ms(20))
	s.hears(30, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.hears(30, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.expect("connect b:1", "send acquire", "granted")

	// The other node cannot be reached.
	s = begin(t, request(3*time.Second, 0))
	s.failed(ms(10), unknown)
	s.failed(ms(20), failure{err: errors.New("connection refused")})
	s.expect("connect b:1")
	s.tick(10 * second)
	s.expect("refused unauthenticated")
}

func TestAWaiterWhoseSessionHasEndedBeginsAnew(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.failed(ms(6000), failure{err: errors.New("cut")})
	s.opened(ms(6000))
	s.hears(6010, `{"lost":{"error":"no_session","message":"m"}}`)
	s.expect("send acquire", "connect b:1", "send resume", "disconnect")
	s.tick(ms(6110))
	s.opened(ms(6120))
	s.expect("connect a:1", "send acquire")
	s.hears(6130, `{"waiting":{"session":"s2","ttl_ms":3000}}`)
	s.hears(6130, `{"granted":{"key":"nightly","token":17,"session":"s2","ttl_ms":3000}}`)
	s.expect("granted")
	// Counted from the acquire that has opened this session.
	s.leaseEnds(ms(6120 + 2640))
}

func TestAnAcquireThatWaitsSitsOutAFullDisk(t *testing.T) {
	for _, code := range []string{"no_space", "too_soon"} {
		s := begin(t, request(3*time.Second, 10*time.Second))
		s.failed(ms(10), failure{refusal: &Refused{Code: code}})
		s.expect()
		s.tick(ms(1009))
		s.expect()
		s.tick(ms(1010))
		s.expect("connect b:1")
		s = begin(t, request(3*time.Second, 0))
		s.failed(ms(10), failure{refusal: &Refused{Code: code}})
		s.expect("refused " + code)
	}
}

func TestARefusedResumeKeepsTheLockUntilItsLeaseEnds(t *testing.T) {
	s := held(t)
	s.failed(ms(100), failure{err: errors.New("cut")})
	s.failed(ms(200), failure{refusal: &Refused{Code: "unauthenticated", Message: "m"}})
	s.expect("connect b:1")
	if s.phase != holding {
		t.Fatal("the lock is lost before its lease has ended")
	}
	s.tick(ms(2640))
	s.expect("lost expired")
}

func TestAReleaseIsAnswered(t *testing.T) {
	s := held(t)
	s.release(ms(100))
	s.expect("send release")
	s.hears(110, `{"check":{"n":1}}`)
	s.expect()
	s.hears(120, `{"released":{}}`)
	s.expect("disconnect", "released")
}

func TestAReleaseWhoseAnswerIsLostIsRepeated(t *testing.T) {
	for _, answer := range []string{
		`{"lost":{"error":"no_session","message":"m"}}`, `{"lost":{"error":"not_holder","message":"m"}}`,
		`{"error":{"error":"no_session","message":"m"}}`, `{"released":{}}`,
	} {
		s := held(t)
		s.release(ms(100))
		s.failed(ms(110), failure{err: errors.New("cut")})
		s.opened(ms(120))
		s.expect("send release", "connect b:1", "send resume", "send release")
		s.hears(130, answer)
		s.expect("disconnect", "released")
	}
}

func TestAReleaseThatIsNotAnsweredIsRepeatedOverAnotherConnection(t *testing.T) {
	s := held(t)
	s.release(ms(100))
	s.expect("send release")
	s.alive(ms(900))
	s.tick(ms(1099))
	s.expect()
	s.tick(ms(1100))
	s.expect("disconnect", "connect b:1")
	s.opened(ms(1200))
	s.expect("send resume", "send release")
}

func TestAFirstReleaseTellsThatTheLockWasLostBefore(t *testing.T) {
	s := held(t)
	s.release(ms(100))
	s.hears(110, `{"lost":{"error":"not_holder","message":"broken"}}`)
	s.expect("send release", "disconnect", "released: lost not_holder")
}

func TestAReleaseThatNoNodeAnswersEndsWithTheLeaseAtTheServer(t *testing.T) {
	s := held(t)
	s.hears(1000, `{"check":{"n":1}}`)
	s.release(ms(1100))
	s.names()
	at := ms(1100)
	for s.phase != over {
		at = s.wakeup()
		s.tick(at)
	}
	// The answer to the check may have arrived at 1,000 ms, with a clock there that is slow.
	if at != ms(1000+3060) {
		t.Fatalf("the release ended at %v", time.Duration(at))
	}
	names := s.names()
	if names[len(names)-1] != "released" {
		t.Fatalf("the engine asked for %q", names)
	}
}

func TestACancelledWaitIsWithdrawn(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.release(ms(100))
	s.expect("send acquire", "send release")
	// A grant that was under way is not handed over.
	s.hears(110, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.expect()
	s.hears(120, `{"released":{}}`)
	s.expect("disconnect", "released")
}

func TestACancelledWaitIsWithdrawnOverANewConnection(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":3000}}`)
	s.failed(ms(90), failure{err: errors.New("cut")})
	s.release(ms(100))
	s.opened(ms(110))
	s.expect("send acquire", "connect b:1", "send resume", "send release")
	s.hears(120, `{"lost":{"error":"no_session","message":"m"}}`)
	s.expect("disconnect", "released")
}

func TestACancelledWaitLeavesASilentNodeSoon(t *testing.T) {
	s := begin(t, request(30*time.Second, 20*time.Second))
	s.opened(0)
	s.hears(10, `{"waiting":{"session":"s1","ttl_ms":30000}}`)
	s.release(ms(100))
	s.expect("send acquire", "send release")
	s.tick(ms(1099))
	s.expect()
	s.tick(ms(1100))
	s.expect("disconnect", "connect b:1")
	s.opened(ms(1110))
	s.expect("send resume", "send release")
}

func TestACancelledAttemptNeedsNoNode(t *testing.T) {
	s := begin(t, request(3*time.Second, 20*time.Second))
	s.release(ms(100))
	s.expect("disconnect", "released")
}

func TestGarbageEndsTheConnectionAndNotTheLock(t *testing.T) {
	for _, text := range []string{
		``, `null`, `[]`, `"released"`, `{}`, `{"check":{"n":1},"lost":{}}`, `{"check":{}}`, `{"check":{"n":-1}}`,
		`{"check":{"n":1.5}}`, `{"check":7}`, `{"renewed":{"n":1}}`, `{"renewed":{"n":1,"ttl_ms":0}}`, `{"lost":{}}`,
		`{"lost":null}`, `{"granted":{"key":"nightly","token":0,"session":"s1","ttl_ms":3000}}`,
		`{"granted":{"key":"other","token":17,"session":"s1","ttl_ms":3000}}`,
		`{"granted":{"key":"nightly","token":17,"session":"s2","ttl_ms":3000}}`, `{"error":{"message":"m"}}`,
		`{"waiting":{"session":"s9","ttl_ms":3000}}`, `{"waiting":{"session":"","ttl_ms":3000}}`, `{"released":{}}`,
		`{"waiting":{"session":"s1","ttl_ms":99999999999}}`, `{"check":{"n":1}} {}`, "{\"check\":{\"n\":1}",
	} {
		s := held(t)
		s.hears(100, text)
		if got := s.names(); strings.Join(got, ", ") != "disconnect, connect b:1" {
			t.Errorf("%s: the engine asked for %q", text, got)
		}
	}
}

func TestUnknownKindsAndFieldsAreIgnored(t *testing.T) {
	s := held(t)
	s.hears(100, `{"weather":"fine"}`)
	s.hears(100, `{"check":{"n":1,"weather":"fine"}}`)
	s.expect("send here")
}

func TestAValueIsRepeatedAfterAResume(t *testing.T) {
	s := held(t)
	if n := s.setValue(ms(100), "x"); n != 1 {
		t.Fatalf("the first value has number %d", n)
	}
	s.failed(ms(110), failure{err: errors.New("cut")})
	if n := s.setValue(ms(115), "y"); n != 2 {
		t.Fatalf("the second value has number %d", n)
	}
	s.opened(ms(120))
	s.expect("send value", "connect b:1", "send resume")
	s.hears(130, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.expect("send value")
	s.hears(140, `{"proclaimed":{"n":1}}`)
	s.hears(140, `{"error":{"n":2,"error":"invalid","message":"too long"}}`)
	s.expect("proclaimed 1 <nil>", "send value", "proclaimed 2 palisade: too long (invalid)")
	if s.phase != holding {
		t.Fatal("a refused value has ended the lock")
	}
	s.setValue(ms(150), "z")
	s.hears(160, `{"error":{"n":3,"error":"leadership_lost","message":"m"}}`)
	s.hears(160, `{"interrupted":{"error":"leadership_lost","message":"m","leader":null}}`)
	s.opened(ms(170))
	s.hears(180, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.tick(ms(400))
	s.opened(ms(400))
	s.hears(410, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.expect("send value", "disconnect", "connect a:1", "send resume", "send value")
}

func TestALossIsTheAnswerToAValueThatComesTooLate(t *testing.T) {
	s := held(t)
	s.setValue(ms(2640), "x")
	s.expect("disconnect",
		"proclaimed 1 palisade: the lock is lost: no node has renewed the lease in time (expired)", "lost expired")
}

func TestOneValueIsUnderWayAtATime(t *testing.T) {
	s := held(t)
	value := func(n float64, text string) {
		t.Helper()
		if sent := s.sent("value"); sent["n"] != n || sent["value"] != text {
			t.Fatalf("the value is %v, not the value %v, %q", sent, n, text)
		}
	}
	s.setValue(ms(100), "x")
	value(1, "x")
	for i := 0; i < 20; i++ {
		s.setValue(ms(100), "y")
	}
	s.expect()
	s.hears(105, `{"proclaimed":{"n":2}}`)
	s.expect()
	s.failed(ms(110), failure{err: errors.New("cut")})
	s.opened(ms(120))
	s.expect("connect b:1", "send resume")
	// The first node may have applied the value. Its repetition comes before every later value.
	s.hears(130, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	value(1, "x")
	s.expect()
	s.hears(140, `{"proclaimed":{"n":1}}`)
	s.expect("proclaimed 1 <nil>", "send value")
	s.hears(150, `{"error":{"n":2,"error":"invalid","message":"m"}}`)
	s.expect("proclaimed 2 palisade: m (invalid)", "send value")
	s.hears(160, `{"error":{"error":"invalid","message":"m"}}`)
	s.expect("proclaimed 3 palisade: m (invalid)", "disconnect")
	if len(s.values) != 18 {
		t.Fatalf("%d values are not answered", len(s.values))
	}
}

func TestAValueThatTheNodeCouldNotReadIsNotSentAgain(t *testing.T) {
	const unreadable = `{"error":{"error":"invalid","message":"the frame has more than 16 KiB"}}`
	s := held(t)
	s.setValue(ms(100), "x")
	s.hears(110, unreadable)
	s.expect("send value", "proclaimed 1 palisade: the frame has more than 16 KiB (invalid)", "disconnect", "connect b:1")
	// A value that waits for the answer to the resume was not sent, so it is not what the node could not read.
	s.setValue(ms(115), "y")
	s.opened(ms(120))
	s.hears(130, unreadable)
	s.expect("send resume", "disconnect")
	s.tick(ms(400))
	s.opened(ms(400))
	s.hears(410, `{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`)
	s.expect("connect a:1", "send resume", "send value")
	s.hears(420, `{"proclaimed":{"n":2}}`)
	s.expect("proclaimed 2 <nil>")
}

func TestALossAnswersTheValuesUnderWay(t *testing.T) {
	s := held(t)
	s.setValue(ms(100), "x")
	s.hears(110, `{"lost":{"error":"not_holder","message":"m"}}`)
	s.expect("send value", "disconnect", "proclaimed 1 palisade: the lock is lost: m (not_holder)", "lost not_holder")
}

func TestSeveralKeysAreGrantedInAnyOrder(t *testing.T) {
	c := claim{Keys: []string{"b", "a"}, TTL: 3000}
	s := begin(t, c)
	s.opened(0)
	s.hears(10, `{"granted":{"keys":["a","b"],"token":17,"session":"s1","ttl_ms":3000,"signed":["x","y"]}}`)
	s.expect("send acquire", "granted")
}

func TestSignedTokensHaveTheOrderOfTheKeys(t *testing.T) {
	for _, c := range []struct {
		keys          []string
		grant, signed string
	}{
		{[]string{"b", "c", "a"}, `"keys":["a","b","c"],"signed":["x","y","z"]`, "[y z x]"},
		{[]string{"b", "c", "a"}, `"keys":["a","b","c"],"signed":["x","y"]`, "[]"},
		{[]string{"b"}, `"key":"b","signed":"y"`, "[y]"},
		{[]string{"b"}, `"keys":["b"],"signed":["y"]`, "[y]"},
	} {
		s := begin(t, claim{Keys: c.keys, TTL: 3000})
		s.opened(0)
		s.hears(10, `{"granted":{`+c.grant+`,"token":17,"session":"s1","ttl_ms":3000}}`)
		s.expect("send acquire", "granted")
		if fmt.Sprint(s.signed) != c.signed {
			t.Errorf("%s for the keys %v: the signed tokens are %v", c.grant, c.keys, s.signed)
		}
	}
}

// TestPromisesHoldWhateverHappens lets random things happen, and checks after each what the engine promises.
func TestPromisesHoldWhateverHappens(t *testing.T) {
	for seed := int64(0); seed < 3000; seed++ {
		if problem := playAtRandom(rand.New(rand.NewSource(seed))); problem != "" {
			t.Fatalf("seed %d: %s", seed, problem)
		}
	}
}

// history is what a caller of the engine has seen.
type history struct {
	granted, lost, answered, released bool
	releasing                         bool
	// end is when the lease ends, by the test's own count: 2640 ms after the newest frame that was answered.
	end  instant
	sent map[uint64]instant
	// asked is when the first frame of the connection was sent.
	asked instant
}

// greet: the first frame is about to be answered.
func (h *history) greet(e *engine, expired bool) {
	if e.link == linkOpen && !expired {
		h.end = latest(h.end, h.asked.add(2640*time.Millisecond))
	}
}

func playAtRandom(random *rand.Rand) string {
	e := newEngine(0, request(3*time.Second, 8*time.Second), []string{"a:1", "b:1", "c:1"}, time.Second, random.Int63n)
	seen := history{sent: map[uint64]instant{}}
	at, check := instant(0), uint64(0)
	for step := 0; step < 400 && e.phase != over; step++ {
		if problem := seen.take(e, at); problem != "" {
			return problem
		}
		if random.Intn(3) == 0 {
			at = at.add(time.Duration(random.Intn(1200)) * time.Millisecond)
		}
		expired := seen.granted && at >= seen.end
		switch random.Intn(14) {
		case 0:
			e.failed(at, failure{err: errors.New("cut")})
			seen.sent = map[uint64]instant{}
		case 1, 2:
			if e.link == linkDialing {
				seen.asked = at
			}
			e.opened(at)
		case 3:
			seen.greet(e, expired)
			e.received(at, []byte(`{"waiting":{"session":"s1","ttl_ms":3000}}`))
		case 4:
			seen.greet(e, expired)
			e.received(at, []byte(`{"granted":{"key":"nightly","token":17,"session":"s1","ttl_ms":3000}}`))
		case 5, 6, 7:
			check++
			e.received(at, []byte(fmt.Sprintf(`{"check":{"n":%d}}`, check)))
			if e.link == linkOpen {
				seen.sent[check] = at
			}
		case 8, 9:
			open := e.link == linkOpen
			e.received(at, []byte(fmt.Sprintf(`{"renewed":{"n":%d,"ttl_ms":3000}}`, check)))
			if sent, some := seen.sent[check]; some && open && !expired {
				seen.end = latest(seen.end, sent.add(2640*time.Millisecond))
			}
		case 10:
			e.received(at, []byte(`{"check":{}}`))
			seen.sent = map[uint64]instant{}
		case 11:
			e.alive(at)
		case 12:
			e.tick(at)
		case 13:
			if random.Intn(20) > 0 {
				e.tick(at)
				break
			}
			seen.releasing = true
			e.release(at)
		}
		if expired && e.phase == holding {
			return fmt.Sprintf("at %v the lock is held, and its lease has ended at %v", time.Duration(at), time.Duration(seen.end))
		}
		if e.phase == holding && seen.granted && e.leaseEnd > seen.end {
			return fmt.Sprintf("the lease ends at %v, not at %v", time.Duration(e.leaseEnd), time.Duration(seen.end))
		}
	}
	return seen.take(e, at)
}

// take checks the order of what the engine tells.
func (h *history) take(e *engine, at instant) string {
	for next, some := e.poll(); some; next, some = e.poll() {
		switch next.kind {
		case actionGranted:
			if h.granted || h.answered || h.releasing {
				return "granted twice, or after a release"
			}
			h.granted = true
			h.end = latest(h.end, e.leaseEnd)
		case actionRefused:
			if h.granted || h.answered {
				return "refused after an answer"
			}
			h.answered = true
		case actionLost:
			// A release whose lease had ended before is no release.
			if !h.granted || h.lost || h.released || h.releasing && at < h.end {
				return "lost twice, or after a release"
			}
			h.lost = true
		case actionReleased:
			if h.released || h.lost {
				return "released twice, or after a loss"
			}
			h.released = true
		}
	}
	return ""
}
