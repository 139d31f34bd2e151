package palisade

import "time"

// route chooses the node to try: the leader that a node has named, else one endpoint after the other.
type route struct {
	endpoints []string
	at        int
	hint      string
	hops      int
	tried     int
	rounds    int
}

// maxHops bounds how often the client follows the word of a node in a row: two nodes may each take the other for the
// leader.
const maxHops = 4

func (r *route) target() string {
	if r.hint != "" {
		return r.hint
	}
	return r.endpoints[r.at]
}

// failed turns to the next node, and reports whether all have been tried, so that a pause is due.
func (r *route) failed(leader string) (pause bool) {
	if leader != "" && leader != r.target() && r.hops < maxHops {
		r.hint = leader
		r.hops++
		return false
	}
	r.hint = ""
	r.at = (r.at + 1) % len(r.endpoints)
	r.tried++
	if r.tried < len(r.endpoints) {
		return false
	}
	r.tried, r.hops = 0, 0
	r.rounds++
	return true
}

// succeeded: a node has renewed the session. Its first answer is not enough: nodes may answer and fail in turns.
func (r *route) succeeded() { r.hops, r.tried, r.rounds = 0, 0, 0 }

// backoff is the pause after all endpoints have failed: 50 to 500 ms, random, so that many clients do not come at once.
func (r *route) backoff(random func(int64) int64) time.Duration {
	const least, most = 50 * time.Millisecond, 500 * time.Millisecond
	bound := most
	if r.rounds < 4 {
		bound = least << r.rounds
	}
	return least + time.Duration(random(int64(bound-least)+1))
}
