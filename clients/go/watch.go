package palisade

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// watchSilence is how long a watch may be silent: a node sends a comment every 10 s.
	watchSilence = 25 * time.Second
	// serves is how long a stream lasts whose node does serve the watch. There are pauses between the attempts if all nodes
	// tell something and end the stream sooner.
	serves = time.Second
	// maxEvent bounds an event, in bytes. The longest is a part of a listing, which has what an answer has.
	maxEvent = maxBody
)

// WatchOptions say what a watch follows: one key, or all keys with a prefix. The zero value follows all keys.
type WatchOptions struct {
	// Key is the one key to follow.
	Key string
	// Prefix is how the keys begin that are followed. Not together with Key.
	Prefix string
	// After is the ID of the last event that was seen, as [Watcher.LastID] tells it: the watch goes on after it, at any
	// node. "": the watch begins with a listing of the present state.
	After string
}

// Watcher follows what happens to locks and records. One goroutine may use it, and any may close it.
type Watcher struct {
	client  *Client
	caller  context.Context
	ctx     context.Context
	cancel  context.CancelFunc
	query   url.Values
	silence time.Duration

	route   route
	stream  *stream
	lastID  string
	trouble error
	event   Event
	done    bool
	err     error

	// refusals has the endpoints that have refused the watch since its last event, and refusal is the last refusal.
	refusals map[string]bool
	refusal  *Refused
	// opened: a node has begun to serve the watch. Until then, a watch that one endpoint has refused ends at giveUpAt.
	opened   bool
	giveUpAt time.Time
}

// Event is something that has happened to a lock or a record, or a part of a listing. A field that its kind does not have
// is empty.
type Event struct {
	// Kind is "listing", "granted", "queued", "value", "released", "withdrawn", "expired", "broken", "put" or "deleted":
	// docs/api.md says what each means. The client passes over kinds that it does not know.
	Kind string `json:"event"`
	// ID is where a watch goes on after this event. An event has the same one at every node. It is empty before a
	// listing is complete.
	ID string `json:"-"`
	// Revision is the index of the event's log entry. Several events may have one entry, and then different IDs.
	Revision uint64 `json:"revision"`
	// Key is that of the lock or the record.
	Key string `json:"key"`

	// Session is the public number of the session that holds the lock, waits, or did so.
	Session uint64   `json:"session"`
	Owner   string   `json:"owner"`
	Token   uint64   `json:"token"`
	Mode    string   `json:"mode"`
	Permits uint32   `json:"permits"`
	Of      uint32   `json:"of"`
	Keys    []string `json:"keys"`
	Value   string   `json:"value"`
	// Ahead is how many wait before the session that has been queued.
	Ahead int `json:"ahead"`
	// Because is why a session holds the lock, or waits, no longer: "request", "expired", "closed", "broken", "denied".
	Because string `json:"because"`

	// Version and Fence are those of the record.
	Version uint64 `json:"version"`
	Fence   uint64 `json:"fence"`

	// Listing is the part of a listing; nil for all other kinds.
	Listing *Listing `json:"-"`
}

// Listing is a part of the present state. Between two parts there may be events, of keys that were listed already. If a
// node stops in the middle, the next one begins anew.
type Listing struct {
	// Begins: this is the first part, and what was told before is out of date.
	Begins bool `json:"begins"`
	// Complete: this is the last part.
	Complete bool `json:"complete"`
	// Locks are those that are held or waited for.
	Locks []LockView `json:"locks"`
	// Records are all records, without their values.
	Records []RecordSummary `json:"records"`
}

// RecordSummary is a record without its value.
type RecordSummary struct {
	Key     string `json:"key"`
	Version uint64 `json:"version"`
	// Fence is that of [Record].
	Fence uint64 `json:"fence"`
	// Bytes is the length of the value.
	Bytes int `json:"bytes"`
}

// Watch follows the locks and records of one key, or of all keys with a prefix:
//
//	watcher := client.Watch(ctx, palisade.WatchOptions{Prefix: "jobs/"})
//	defer watcher.Close()
//	for watcher.Next() {
//		event := watcher.Event()
//		…
//	}
//	return watcher.Err()
//
// It tells each event once and in order, and goes on at another node when it loses its connection, for as long as that
// takes. It begins with a listing, unless it has an After. It ends with ctx, with Close, and with a *CompactedError if
// the events after the last one are not there any more. It ends with a *Refused if all endpoints refuse it one after the
// other; at its beginning, also if one refuses it and no other serves it within the client's Patience.
//
// A node that lags behind tells late. So a watch is no proof that a session holds a lock.
func (c *Client) Watch(ctx context.Context, options WatchOptions) *Watcher {
	w := &Watcher{
		client: c, caller: ctx, silence: watchSilence, route: c.newRoute(), lastID: options.After, refusals: map[string]bool{},
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	w.query = url.Values{"prefix": {options.Prefix}}
	if options.Key != "" {
		w.query = url.Values{"key": {options.Key}}
	}
	if options.Key != "" && options.Prefix != "" {
		w.end(invalid("a watch has the key %q and the prefix %q; give one of them", options.Key, options.Prefix))
	}
	return w
}

// Next waits for the next event, and reports whether there is one: not after the end of the watch ([Watcher.Err]).
func (w *Watcher) Next() bool {
	for !w.done {
		if w.ctx.Err() != nil {
			w.end(w.whyEnded())
			break
		}
		if w.stream == nil {
			w.connect()
			continue
		}
		raw, err := w.stream.next()
		if err != nil {
			w.leave(err, false)
			continue
		}
		if w.take(raw) {
			return true
		}
	}
	return false
}

// Event is the event that Next has found.
func (w *Watcher) Event() Event { return w.event }

// Err is why the watch has ended: a *CompactedError, a *Refused, or the end of its context. It is nil before the end, and
// after Close.
func (w *Watcher) Err() error { return w.err }

// LastID is the ID of the last event that Next has found: the After of a watch that goes on after it. It is empty until a
// listing is complete.
func (w *Watcher) LastID() string { return w.lastID }

// Close ends the watch. A Next that waits returns false.
func (w *Watcher) Close() { w.cancel() }

func (w *Watcher) whyEnded() error {
	ended := w.caller.Err()
	if ended == nil || w.trouble == nil {
		return ended
	}
	return fmt.Errorf("palisade: the watch has ended: %w; its last connection: %v", ended, w.trouble)
}

func (w *Watcher) end(err error) {
	w.done, w.err = true, err
	w.hangUp()
	w.cancel()
}

func (w *Watcher) hangUp() {
	if w.stream != nil {
		w.stream.close()
		w.stream = nil
	}
}

// connect asks the next node for what comes after the last event.
func (w *Watcher) connect() {
	address := w.route.target()
	query := url.Values{}
	for name, values := range w.query {
		query[name] = values
	}
	if w.lastID != "" {
		query.Set("after", w.lastID)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	timer := time.AfterFunc(clamp(w.client.options.Patience/3, 300*time.Millisecond, 5*time.Second), cancel)
	response, _, err := w.client.send(ctx, address, call{method: http.MethodGet, path: watchPath, query: query})
	if err != nil {
		timer.Stop()
		cancel()
		w.leave(err, false)
		return
	}
	s := &stream{body: response.Body, cancel: cancel, timer: timer, silence: w.silence, began: time.Now()}
	if response.StatusCode != http.StatusOK {
		body, _ := readBody(response)
		s.close()
		a := w.client.judge(&httpRefusal{response.StatusCode, response.Header.Get("Location"), watchPath, body})
		w.refused(a.refusal, a.err)
		return
	}
	if kind := response.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		s.close()
		w.leave(fmt.Errorf("%s sent %q in place of a stream of events", address, kind), false)
		return
	}
	s.lines = bufio.NewScanner(s)
	s.lines.Buffer(nil, maxEvent)
	w.stream = s
	w.opened, w.giveUpAt = true, time.Time{}
	delete(w.refusals, address)
}

const watchPath = "/v1/watch"

// elsewhere are the codes with which a node ends a watch that goes on at another node, or later. [retryable] are some.
var elsewhere = map[string]bool{"too_slow": true, "too_soon": true}

// refused leaves a node that does not serve the watch, and ends a watch that no node serves. One node may have as many
// watches as it can have, or a file of bearer tokens that is older than that of the others.
func (w *Watcher) refused(refusal *Refused, err error) {
	if refusal != nil && !retryable[refusal.Code] && !elsewhere[refusal.Code] {
		if !w.opened && w.giveUpAt.IsZero() {
			w.giveUpAt = time.Now().Add(w.client.options.Patience)
		}
		w.refusal = refusal
		w.refusals[w.route.target()] = true
		if w.refusedByAll() {
			w.end(refusal)
			return
		}
	}
	w.leave(err, refusal != nil && refusal.Code == "too_soon")
}

func (w *Watcher) refusedByAll() bool {
	for _, endpoint := range w.route.endpoints {
		if !w.refusals[endpoint] {
			return false
		}
	}
	return true
}

// leave turns to the next node.
func (w *Watcher) leave(err error, tooSoon bool) {
	w.hangUp()
	if w.ctx.Err() != nil {
		// The end of the context says less than what went wrong before.
		return
	}
	if !w.giveUpAt.IsZero() && time.Now().After(w.giveUpAt) {
		w.end(w.refusal)
		return
	}
	w.trouble = err
	pause := time.Duration(0)
	if w.route.failed("") {
		pause = w.route.backoff(randomBelow)
	}
	if tooSoon && pause < refusalPause {
		pause = refusalPause
	}
	sleep(w.ctx, pause)
}

// take reads an event, and reports whether it is one for the caller.
func (w *Watcher) take(raw rawEvent) bool {
	switch raw.kind {
	case "end":
		var body struct {
			Error   string `json:"error"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal(raw.data, &body); err != nil || body.Error == "" {
			w.leave(fmt.Errorf("the node ended the watch with %q", raw.data), false)
			return false
		}
		refusal := &Refused{Code: body.Error, Message: body.Message, Body: raw.data}
		w.refused(refusal, refusal)
		return false
	case "compacted":
		var body struct {
			Floor *uint64 `json:"floor"`
		}
		if err := json.Unmarshal(raw.data, &body); err != nil || body.Floor == nil {
			w.leave(fmt.Errorf("the node sent a compaction that the client cannot read: %q", raw.data), false)
			return false
		}
		w.lastID = ""
		w.end(&CompactedError{Floor: *body.Floor})
		return false
	}
	event, known, err := raw.read()
	if err != nil {
		w.leave(err, false)
		return false
	}
	if time.Since(w.stream.began) > serves {
		w.route.succeeded()
	}
	w.trouble = nil
	w.refusals = map[string]bool{}
	if raw.id != "" {
		w.lastID = raw.id
	}
	w.event = event
	return known
}

// eventKinds are the kinds that the client knows, each with the fields that it must have beside revision and key.
var eventKinds = map[string][]string{
	"listing":   {"begins", "complete", "locks", "records"},
	"granted":   {"session", "owner", "token", "mode"},
	"queued":    {"session", "owner", "mode", "ahead"},
	"value":     {"session", "token", "value"},
	"released":  {"session", "token", "because"},
	"withdrawn": {"session", "because"},
	"expired":   {"session"},
	"broken":    {"session", "token"},
	"put":       {"version"},
	"deleted":   {"version"},
}

// read decodes an event; known is false for one of a newer server.
func (r rawEvent) read() (event Event, known bool, err error) {
	required, known := eventKinds[r.kind]
	if !known {
		return event, false, nil
	}
	err = requireFields(r.data, required)
	if err == nil && r.kind == "listing" {
		event.Listing = new(Listing)
		err = json.Unmarshal(r.data, event.Listing)
	}
	if err == nil {
		err = json.Unmarshal(r.data, &event)
	}
	event.Kind, event.ID = r.kind, r.id
	switch {
	case err != nil:
	case event.Revision == 0:
		err = errors.New("it has no revision")
	case event.Listing == nil && event.Key == "":
		err = errors.New("it has no key")
	case event.Listing != nil && event.Listing.Complete && r.id == "":
		err = errors.New("it is complete and has no ID")
	case event.Listing != nil:
		for _, record := range event.Listing.Records {
			if record.Key == "" || record.Version == 0 {
				err = errors.New("a record lacks its key or version")
			}
		}
	}
	if err != nil {
		return event, false, fmt.Errorf("the node sent an event %q that the client cannot read: %v", r.kind, err)
	}
	return event, true, nil
}

// requireFields verifies that a JSON object has these fields. A null is no field.
func requireFields(object []byte, names []string) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return err
	}
	for _, name := range names {
		if value, has := fields[name]; !has || string(value) == "null" {
			return fmt.Errorf("it has no %s", name)
		}
	}
	return nil
}

// stream reads server-sent events.
type stream struct {
	body    io.ReadCloser
	cancel  context.CancelFunc
	timer   *time.Timer
	silence time.Duration
	began   time.Time
	lines   *bufio.Scanner
}

// rawEvent is a server-sent event.
type rawEvent struct {
	id, kind string
	data     []byte
}

// Read reads from the node, which may be silent for so long. The time between two reads is the caller's.
func (s *stream) Read(into []byte) (int, error) {
	s.timer.Reset(s.silence)
	n, err := s.body.Read(into)
	s.timer.Stop()
	return n, err
}

// next reads the next event that is whole: an empty line follows it.
func (s *stream) next() (rawEvent, error) {
	var event rawEvent
	for size := 0; s.lines.Scan(); {
		line := s.lines.Bytes()
		if len(line) == 0 {
			if event.kind != "" || event.data != nil {
				return event, nil
			}
			event = rawEvent{}
			continue
		}
		if size += len(line); size > maxEvent {
			return event, fmt.Errorf("the node sent an event that is longer than %d bytes", maxEvent)
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "id":
			event.id = string(value)
		case "event":
			event.kind = string(value)
		case "data":
			if event.data != nil {
				event.data = append(event.data, '\n')
			}
			event.data = append(event.data, value...)
		case "":
			// A comment: the watch lives.
			size = 0
		}
	}
	if err := s.lines.Err(); err != nil {
		return event, fmt.Errorf("the stream of events broke off: %v", err)
	}
	return event, errors.New("the stream of events has ended")
}

func (s *stream) close() {
	s.timer.Stop()
	s.cancel()
	_ = s.body.Close()
}
