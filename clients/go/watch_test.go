package palisade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	listing = "id: 41\nevent: listing\ndata: {\"revision\":41,\"begins\":true,\"locks\":[{\"key\":\"nightly\",\"held\":false," +
		"\"holders\":[],\"queue\":[]}],\"records\":[{\"key\":\"r\",\"version\":7,\"fence\":null,\"bytes\":3}],\"complete\":true}\n\n"
	queued   = "id: 44\nevent: queued\ndata: {\"ahead\":2,\"event\":\"queued\",\"id\":\"44\",\"key\":\"nightly\",\"mode\":\"exclusive\",\"owner\":\"w\",\"revision\":44,\"session\":5}\n\n"
	released = "id: 47.1\nevent: released\ndata: {\"because\":\"request\",\"event\":\"released\",\"id\":\"47.1\",\"key\":\"nightly\",\"revision\":47,\"session\":3,\"token\":17}\n\n"
	granted  = "id: 47\nevent: granted\ndata: {\"event\":\"granted\",\"id\":\"47\",\"key\":\"nightly\",\"mode\":\"exclusive\",\"owner\":\"w\",\"revision\":47,\"session\":5,\"token\":18}\n\n"
	put      = "id: 50\nevent: put\ndata: {\"event\":\"put\",\"id\":\"50\",\"key\":\"nightly\",\"revision\":50,\"version\":9,\"fence\":18}\n\n"
)

// streams is a script that answers a watch after an event with this text, and what end does.
func streams(after, text string, end func(*peer)) func(*peer) {
	return func(p *peer) {
		query := p.request.URL.Query()
		if query.Get("after") != after || query.Get("key") != "nightly" || query.Has("prefix") || p.request.URL.Path != "/v1/watch" {
			p.t.Errorf("the client asked for %s; the test expects the events after %q", p.request.URL, after)
		}
		p.writer.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(p.writer, text)
		p.writer.(http.Flusher).Flush()
		if end != nil {
			end(p)
		}
	}
}

func watch(t *testing.T, after string, nodes ...*node) *Watcher {
	w := client(t, Options{}, nodes...).Watch(soon(t), WatchOptions{Key: "nightly", After: after})
	t.Cleanup(w.Close)
	return w
}

// next expects the event with this kind and ID.
func next(t *testing.T, w *Watcher, kind, id string) Event {
	t.Helper()
	if !w.Next() {
		t.Fatalf("the watch has ended: %v", w.Err())
	}
	event := w.Event()
	if event.Kind != kind || event.ID != id {
		t.Fatalf("the event is %+v, in place of %s %s", event, kind, id)
	}
	return event
}

func TestAWatchTellsItsEvents(t *testing.T) {
	unknown := "id: 45\nevent: news\ndata: [1]\n\n"
	w := watch(t, "", newHTTPNode(t, streams("", ": 40\n\n"+listing+queued+unknown+": 46\n\n"+released+granted, (*peer).hang)))
	first := next(t, w, "listing", "41")
	if l := first.Listing; first.Revision != 41 || !l.Begins || !l.Complete || l.Locks[0].Key != "nightly" ||
		l.Records[0] != (RecordSummary{Key: "r", Version: 7, Bytes: 3}) {
		t.Errorf("%+v", l)
	}
	if e := next(t, w, "queued", "44"); e.Owner != "w" || e.Ahead != 2 || e.Session != 5 || e.Mode != "exclusive" || e.Listing != nil {
		t.Errorf("%+v", e)
	}
	if e := next(t, w, "released", "47.1"); e.Revision != 47 || e.Because != "request" || e.Token != 17 || e.Key != "nightly" {
		t.Errorf("%+v", e)
	}
	next(t, w, "granted", "47")
	w.Close()
	if w.Next() || w.Err() != nil {
		t.Errorf("after Close: %v", w.Err())
	}
	if w.LastID() != "47" {
		t.Errorf("the last ID is %q", w.LastID())
	}
}

// Goal: after every kind of end, the watch goes on at the next node after the last event, and the caller sees no sign of
// it.
func TestAWatchGoesOnAtTheNextNode(t *testing.T) {
	half := strings.SplitAfter(granted, "data:")[0]
	for name, first := range map[string]func(*peer){
		"a reset":               streams("", listing+queued+released, (*peer).lose),
		"an end":                streams("", listing+queued+released, nil),
		"half an event":         streams("", listing+queued+released+half, (*peer).lose),
		"an event without end":  streams("", listing+queued+released+strings.TrimSuffix(granted, "\n\n"), nil),
		"an event without data": streams("", listing+queued+released+"id: 47\nevent: granted\n\n", (*peer).hang),
		"an event without key":  streams("", listing+queued+released+"id: 47\nevent: granted\ndata: {\"revision\":47}\n\n", (*peer).hang),
		"a stop":                streams("", listing+queued+released+"event: end\ndata: {\"error\":\"shutting_down\",\"message\":\"m\"}\n\n", (*peer).hang),
		"a slow reader":         streams("", listing+queued+released+"event: end\ndata: {\"error\":\"too_slow\",\"message\":\"m\"}\n\n", (*peer).hang),
	} {
		t.Run(name, func(t *testing.T) {
			second := newHTTPNode(t, streams("47.1", granted, nil))
			third := newHTTPNode(t, answered(503, `{"error":"no_leader","message":"m"}`))
			fourth := newHTTPNode(t, streams("47", put, nil))
			w := watch(t, "", newHTTPNode(t, first), second, third, fourth)
			next(t, w, "listing", "41")
			next(t, w, "queued", "44")
			next(t, w, "released", "47.1")
			next(t, w, "granted", "47")
			if e := next(t, w, "put", "50"); e.Version != 9 || e.Fence != 18 || w.LastID() != "50" {
				t.Errorf("%+v, the last ID is %q", e, w.LastID())
			}
		})
	}
}

func TestAWatchThatIsSilentIsResumed(t *testing.T) {
	w := watch(t, "40",
		newHTTPNode(t, streams("40", queued, (*peer).hang)), newHTTPNode(t, streams("44", granted, (*peer).hang)))
	w.silence = 200 * time.Millisecond
	next(t, w, "queued", "44")
	next(t, w, "granted", "47")
}

// Goal: comments keep a watch alive, and are no IDs.
func TestCommentsAreASignOfLife(t *testing.T) {
	w := watch(t, "40", newHTTPNode(t, streams("40", "", func(p *peer) {
		for i := 0; i < 8; i++ {
			time.Sleep(500 * time.Millisecond)
			_, _ = fmt.Fprintf(p.writer, ": %d\n\n", 60+i)
			p.writer.(http.Flusher).Flush()
		}
		_, _ = io.WriteString(p.writer, queued)
	})))
	w.silence = 3 * time.Second
	next(t, w, "queued", "44")
	if w.LastID() != "44" {
		t.Errorf("the last ID is %q", w.LastID())
	}
}

// Goal: a caller may work on an event for longer than a node may be silent.
func TestTheTimeOfTheCallerIsNoSilence(t *testing.T) {
	told := make(chan struct{})
	w := watch(t, "40", newHTTPNode(t, streams("40", queued, func(p *peer) {
		<-told
		_, _ = io.WriteString(p.writer, granted)
		p.writer.(http.Flusher).Flush()
		p.hang()
	})))
	w.silence = time.Second
	next(t, w, "queued", "44")
	close(told)
	time.Sleep(2 * w.silence)
	next(t, w, "granted", "47")
}

func TestTheLongestListingIsRead(t *testing.T) {
	long := "id: 41\nevent: listing\ndata: {\"revision\":41,\"begins\":true,\"locks\":[" + crowded() +
		"],\"records\":[],\"complete\":true}\n\n"
	w := watch(t, "", newHTTPNode(t, streams("", long, (*peer).hang)))
	if e := next(t, w, "listing", "41"); len(e.Listing.Locks[0].Holders) != 1000 {
		t.Errorf("the lock has %d holders", len(e.Listing.Locks[0].Holders))
	}
}

func TestAnEventThatLacksAFieldIsRefused(t *testing.T) {
	read := func(kind, data string) error {
		_, known, err := rawEvent{"60", kind, []byte(data)}.read()
		if err == nil && !known {
			t.Errorf("%s is not known", kind)
		}
		return err
	}
	for kind, data := range map[string]string{
		"listing":   `{"revision":60,"begins":true,"complete":true,"locks":[],"records":[]}`,
		"granted":   `{"revision":60,"key":"k","session":3,"owner":"w","token":17,"mode":"shared"}`,
		"queued":    `{"revision":60,"key":"k","session":3,"owner":"w","mode":"shared","ahead":0}`,
		"value":     `{"revision":60,"key":"k","session":3,"token":17,"value":""}`,
		"released":  `{"revision":60,"key":"k","session":3,"token":17,"because":"request"}`,
		"withdrawn": `{"revision":60,"key":"k","session":3,"because":"closed"}`,
		"expired":   `{"revision":60,"key":"k","session":3}`,
		"broken":    `{"revision":60,"key":"k","session":3,"token":17}`,
		"put":       `{"revision":60,"key":"k","version":7}`,
		"deleted":   `{"revision":60,"key":"k","version":7}`,
	} {
		if err := read(kind, data); err != nil {
			t.Error(err)
		}
		var fields map[string]any
		_ = json.Unmarshal([]byte(data), &fields)
		for name, value := range fields {
			fields[name] = nil
			null, _ := json.Marshal(fields)
			delete(fields, name)
			absent, _ := json.Marshal(fields)
			fields[name] = value
			if read(kind, string(null)) == nil || read(kind, string(absent)) == nil {
				t.Errorf("%s is read without %s", kind, name)
			}
		}
	}
	for _, parts := range []string{
		`"locks":[{"key":"k"}],"records":[]`, `"locks":[null],"records":[]`,
		`"locks":[],"records":[{"key":"r","bytes":3}]`, `"locks":[],"records":[{"version":7,"bytes":3}]`,
	} {
		if read("listing", `{"revision":60,"begins":true,"complete":true,`+parts+`}`) == nil {
			t.Errorf("a listing is read with %s", parts)
		}
	}
}

// Goal: a listing that breaks off begins anew at the next node, also after events between its parts.
func TestAListingThatBreaksOffBeginsAnew(t *testing.T) {
	part := strings.Replace(strings.TrimPrefix(listing, "id: 41\n"), `"complete":true`, `"complete":false`, 1)
	between := strings.TrimPrefix(queued, "id: 44\n")
	w := watch(t, "", newHTTPNode(t, streams("", part+between, nil)), newHTTPNode(t, streams("", listing+granted, (*peer).hang)))
	if e := next(t, w, "listing", ""); e.Listing.Complete || w.LastID() != "" {
		t.Errorf("%+v, the last ID is %q", e.Listing, w.LastID())
	}
	next(t, w, "queued", "")
	next(t, w, "listing", "41")
	next(t, w, "granted", "47")
}

// Goal: nodes that tell something and end the stream at once, in turns, are not asked without pauses.
func TestNodesThatEndAWatchAtOnceAreAskedWithPauses(t *testing.T) {
	part := strings.Replace(strings.TrimPrefix(listing, "id: 41\n"), `"complete":true`, `"complete":false`, 1)
	script := streams("", part, nil)
	w := watch(t, "", newHTTPNode(t, script, script), newHTTPNode(t, script, script))
	for i := 0; i < 4; i++ {
		next(t, w, "listing", "")
	}
	if w.route.rounds == 0 {
		t.Error("no pause was made after both nodes had ended the stream")
	}
}

func TestACompactedPastIsAnErrorOfItsOwn(t *testing.T) {
	compacted := "id:\nevent: compacted\ndata: {\"floor\":120,\"message\":\"m\"}\n\n"
	w := watch(t, "40", newHTTPNode(t, streams("40", queued+compacted+listing, (*peer).hang)))
	next(t, w, "queued", "44")
	var gone *CompactedError
	if w.Next() || !errors.As(w.Err(), &gone) || gone.Floor != 120 || !errors.Is(w.Err(), ErrCompacted) || w.LastID() != "" {
		t.Fatalf("%v, the last ID is %q", w.Err(), w.LastID())
	}
	if w.Next() {
		t.Error("the watch goes on")
	}
}

// refusing are a refusal by status, and one by the end of a stream.
func refusing(code string) (status, end string) {
	return `{"error":"` + code + `","message":"m"}`, "event: end\ndata: {\"error\":\"" + code + "\",\"message\":\"m\"}\n\n"
}

func TestRefusalsOfAllEndpointsEndAWatch(t *testing.T) {
	for code, number := range map[string]int{"limit": 429, "unauthenticated": 401, "denied": 403} {
		status, end := refusing(code)
		w := watch(t, "", newHTTPNode(t, answered(number, status)), newHTTPNode(t, streams("", end, (*peer).hang)))
		var refused *Refused
		if w.Next() || !errors.As(w.Err(), &refused) || refused.Code != code {
			t.Fatal(w.Err())
		}
	}
	both := client(t, Options{}, newHTTPNode(t)).Watch(soon(t), WatchOptions{Key: "a", Prefix: "b"})
	var refused *Refused
	if both.Next() || !errors.As(both.Err(), &refused) || refused.Code != "invalid" {
		t.Fatal(both.Err())
	}
}

// Goal: a node that has no place for a watch, or does not know the client yet, does not end it while another node serves
// it. What was refused before an event counts no longer.
func TestRefusalsOfOneNodeDoNotEndAWatch(t *testing.T) {
	for code, number := range map[string]int{"limit": 429, "unauthenticated": 401, "denied": 403} {
		status, end := refusing(code)
		w := watch(t, "",
			newHTTPNode(t, answered(number, status), streams("41", queued, (*peer).hang)),
			newHTTPNode(t, streams("", listing+end, (*peer).hang)))
		next(t, w, "listing", "41")
		next(t, w, "queued", "44")
	}
}

// Goal: a watch that one node refuses, while the other cannot be reached, ends in time, with the refusal.
func TestAWatchThatOneNodeRefusesLooksForOthersWithPatience(t *testing.T) {
	status, _ := refusing("limit")
	// After its answer the node is silent.
	n := newHTTPNode(t, answered(429, status))
	c := clientOf(t, Options{Patience: 300 * time.Millisecond}, n.address()+","+closedPort(t))
	w := c.Watch(soon(t), WatchOptions{Key: "nightly"})
	t.Cleanup(w.Close)
	var refused *Refused
	if w.Next() || !errors.As(w.Err(), &refused) || refused.Code != "limit" {
		t.Fatal(w.Err())
	}
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	began := make(chan struct{})
	n := newHTTPNode(t, func(p *peer) {
		if p.request.URL.RawQuery != "prefix=" {
			t.Errorf("the client asked for %s", p.request.URL)
		}
		p.writer.Header().Set("Content-Type", "text/event-stream")
		p.writer.(http.Flusher).Flush()
		close(began)
		p.hang()
	})
	w := client(t, Options{}, n).Watch(ctx, WatchOptions{})
	go func() { <-began; cancel() }()
	if w.Next() || !errors.Is(w.Err(), context.Canceled) {
		t.Fatal(w.Err())
	}
	// While no node serves it, the error says why.
	ctx, cancel = context.WithCancel(context.Background())
	n = newHTTPNode(t, answered(200, "<html>"), func(p *peer) { cancel(); p.hang() })
	w = client(t, Options{}, n).Watch(ctx, WatchOptions{})
	if w.Next() || !errors.Is(w.Err(), context.Canceled) || !strings.Contains(w.Err().Error(), "in place of a stream") {
		t.Fatal(w.Err())
	}
}
