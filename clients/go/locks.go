package palisade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// AgeUnknown is the age of a stale answer of a node that has not heard from a leader since its start.
const AgeUnknown time.Duration = -1

// ReadOptions say how current an answer must be. The zero value asks for a linearizable read: it has every change that
// was acknowledged before it began.
type ReadOptions struct {
	// Stale takes the answer of any node from what it knows. The answer then says its age.
	Stale bool
}

// ListOptions say which page of a list is read.
type ListOptions struct {
	// Limit bounds the locks of the page: 1 to 1,000. 0 stands for 100. A page may have fewer, and not be the last.
	Limit int
	// After is where the page begins: the NextAfter of the page before.
	After string
	// Stale is that of [ReadOptions].
	Stale bool
}

// LockView is a lock as others see it.
type LockView struct {
	Key  string `json:"key"`
	Held bool   `json:"held"`
	// Holders are all holders in the order of their grants. Those of a shared lock or a semaphore may be many.
	Holders []Holder `json:"holders"`
	// Queue are the waiters in order of arrival. A lock without a holder may have some: they wait for another key, too.
	Queue []Waiter `json:"queue"`
	// Age is that of a stale answer, or AgeUnknown.
	Age time.Duration `json:"-"`
}

// Holder is a session that holds a lock.
type Holder struct {
	Owner string `json:"owner"`
	// Session is the session's public number.
	Session uint64 `json:"session"`
	Token   uint64 `json:"token"`
	// ExpiresIn is the time until the session ends if its client is not heard.
	ExpiresIn time.Duration `json:"-"`
	// Mode is "exclusive", "shared" or "semaphore". A semaphore's holder has Permits of its Of permits.
	Mode    string `json:"mode"`
	Permits uint32 `json:"permits"`
	Of      uint32 `json:"of"`
	// Holds is how many releases give the lock back.
	Holds uint32 `json:"holds"`
	// Keys are all keys of the claim, if there are several.
	Keys []string `json:"keys"`
	// Value is what the holder says to other clients ([LockOptions]).
	Value string `json:"value"`
}

// Waiter is a session that waits for a lock.
type Waiter struct {
	Owner   string   `json:"owner"`
	Session uint64   `json:"session"`
	Mode    string   `json:"mode"`
	Permits uint32   `json:"permits"`
	Of      uint32   `json:"of"`
	Keys    []string `json:"keys"`
}

// LockPage is a page of a list.
type LockPage struct {
	// Locks are held or waited for, in the order of their keys.
	Locks []LockView
	// NextAfter is the After of the next page; "" if this is the last.
	NextAfter string
	// Age is that of a stale answer, or AgeUnknown.
	Age time.Duration
}

// Show reads a lock: who holds it, who waits, and the holders' values. A lock that is free is shown without a holder. A
// lock that is shown as held may be released at the next moment: the holder's token tells a resource whether it still
// counts.
func (c *Client) Show(ctx context.Context, key string, options ReadOptions) (*LockView, error) {
	if key == "" {
		return nil, invalid("the key is empty")
	}
	var view *LockView
	err := c.do(ctx, call{
		method: http.MethodGet, path: "/v1/locks/" + escape(key), query: options.query(),
		read: func(_ http.Header, body []byte) error {
			var answer LockView
			var old age
			if err := decodeAnswer(body, &answer); err != nil {
				return err
			}
			if err := decodeAnswer(body, &old); err != nil {
				return err
			}
			if answer.Key != key {
				return fmt.Errorf("the server shows the lock %q, and was asked for %q", answer.Key, key)
			}
			view = &answer
			view.Age = old.read(options.Stale)
			return nil
		},
	})
	return view, err
}

// List reads a page of the locks that are held or waited for and whose keys begin with prefix. Each page is a read of its
// own.
func (c *Client) List(ctx context.Context, prefix string, options ListOptions) (*LockPage, error) {
	query := ReadOptions{options.Stale}.query()
	query.Set("prefix", prefix)
	if options.Limit != 0 {
		query.Set("limit", strconv.Itoa(options.Limit))
	}
	if options.After != "" {
		query.Set("after", options.After)
	}
	var page *LockPage
	err := c.do(ctx, call{
		method: http.MethodGet, path: "/v1/locks", query: query,
		read: func(_ http.Header, body []byte) error {
			var answer struct {
				Locks     []LockView `json:"locks"`
				NextAfter string     `json:"next_after"`
				age
			}
			if err := decodeAnswer(body, &answer); err != nil {
				return err
			}
			if answer.Locks == nil {
				return errors.New("the server's page has no list of locks")
			}
			page = &LockPage{answer.Locks, answer.NextAfter, answer.age.read(options.Stale)}
			return nil
		},
	})
	return page, err
}

func (o ReadOptions) query() url.Values {
	query := url.Values{}
	if o.Stale {
		query.Set("consistency", "stale")
	}
	return query
}

// age is the field that a stale answer has besides.
type age struct {
	MS *int64 `json:"age_ms"`
}

func (a age) read(stale bool) time.Duration {
	switch {
	case !stale:
		return 0
	case a.MS == nil:
		return AgeUnknown
	}
	return time.Duration(*a.MS) * time.Millisecond
}

// UnmarshalJSON reads a lock as the server shows it.
func (v *LockView) UnmarshalJSON(text []byte) error {
	type fields LockView
	lock := struct {
		*fields
		Held *bool `json:"held"`
	}{fields: (*fields)(v)}
	if err := json.Unmarshal(text, &lock); err != nil {
		return err
	}
	if v.Key == "" || lock.Held == nil || v.Holders == nil || v.Queue == nil {
		return errors.New("a lock lacks its key, held, holders or queue")
	}
	v.Held = *lock.Held
	return nil
}

// UnmarshalJSON reads a holder as the server shows it.
func (h *Holder) UnmarshalJSON(text []byte) error {
	type fields Holder
	holder := struct {
		*fields
		ExpiresIn int64 `json:"expires_in_ms"`
	}{fields: (*fields)(h)}
	if err := json.Unmarshal(text, &holder); err != nil {
		return err
	}
	if h.Token == 0 {
		return errors.New("a holder has no token")
	}
	h.ExpiresIn = time.Duration(holder.ExpiresIn) * time.Millisecond
	return nil
}

func decodeAnswer(body []byte, answer any) error {
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("the server sent an answer that the client cannot read: %v", err)
	}
	return nil
}
