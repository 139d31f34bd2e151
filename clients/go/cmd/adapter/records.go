package main

import (
	"context"
	"errors"

	"palisade/clients/go"
)

// condition and change are those of POST /v1/kv.
type condition struct {
	Held *struct {
		Lock  string `json:"lock"`
		Token uint64 `json:"token"`
	} `json:"held"`
	Version *struct {
		Key     string `json:"key"`
		Version uint64 `json:"version"`
	} `json:"version"`
}

type change struct {
	Put    *content `json:"put"`
	Append *content `json:"append"`
	Delete *content `json:"delete"`
}

type content struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (a *adapter) write(ctx context.Context, c command) (map[string]any, error) {
	options := palisade.WriteOptions{IfVersion: c.IfVersion}
	if c.Under != "" {
		a.mu.Lock()
		named := a.holds[c.Under]
		a.mu.Unlock()
		if options.Lock = a.lockOf(named); options.Lock == nil {
			return nil, errNoLock
		}
	}
	var version uint64
	var err error
	records := a.client.Records
	switch c.Do {
	case "put":
		version, err = records.Put(ctx, c.Key, []byte(c.Value), options)
	case "append":
		version, err = records.Append(ctx, c.Key, []byte(c.Value), options)
	case "delete":
		version, err = records.Delete(ctx, c.Key, options)
	default:
		version, err = records.Transact(ctx, changes(c), conditions(c))
	}
	return map[string]any{"version": version}, err
}

func changes(c command) (changes []palisade.Change) {
	for _, one := range c.Changes {
		switch {
		case one.Put != nil:
			changes = append(changes, palisade.Put(one.Put.Key, []byte(one.Put.Value)))
		case one.Append != nil:
			changes = append(changes, palisade.Append(one.Append.Key, []byte(one.Append.Value)))
		case one.Delete != nil:
			changes = append(changes, palisade.Delete(one.Delete.Key))
		}
	}
	return changes
}

func conditions(c command) (conditions []palisade.Condition) {
	for _, one := range c.Conditions {
		switch {
		case one.Held != nil:
			conditions = append(conditions, palisade.HeldWith(one.Held.Lock, one.Held.Token))
		case one.Version != nil:
			conditions = append(conditions, palisade.VersionIs(one.Version.Key, one.Version.Version))
		}
	}
	return conditions
}

func (a *adapter) read(ctx context.Context, c command) (map[string]any, error) {
	switch c.Do {
	case "get":
		record, err := a.client.Records.Get(ctx, c.Key, palisade.ReadOptions{})
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"value": string(record.Value), "version": record.Version, "fence": unlessZero(record.Fence),
		}, nil
	case "show":
		view, err := a.client.Show(ctx, c.Key, palisade.ReadOptions{})
		if err != nil {
			return nil, err
		}
		return shown(*view), nil
	}
	locks := []any{}
	for options := (palisade.ListOptions{Limit: c.Limit}); ; {
		page, err := a.client.List(ctx, c.Prefix, options)
		if err != nil {
			return nil, err
		}
		for _, view := range page.Locks {
			locks = append(locks, shown(view))
		}
		if options.After = page.NextAfter; options.After == "" {
			return map[string]any{"locks": locks}, nil
		}
	}
}

func shown(view palisade.LockView) map[string]any {
	holders, queue := []any{}, []any{}
	for _, holder := range view.Holders {
		holders = append(holders, map[string]any{
			"owner": holder.Owner, "session": holder.Session, "token": holder.Token, "mode": holder.Mode,
			"permits": unlessZero(holder.Permits), "of": unlessZero(holder.Of), "holds": holder.Holds,
			"expires_in_ms": holder.ExpiresIn.Milliseconds(), "keys": holder.Keys, "value": unlessZero(holder.Value),
		})
	}
	for _, waiter := range view.Queue {
		queue = append(queue, map[string]any{
			"owner": waiter.Owner, "session": waiter.Session, "mode": waiter.Mode, "permits": unlessZero(waiter.Permits),
			"of": unlessZero(waiter.Of), "keys": waiter.Keys,
		})
	}
	return map[string]any{"key": view.Key, "held": view.Held, "holders": holders, "queue": queue}
}

// unlessZero is null in place of what is not there.
func unlessZero[T comparable](value T) any {
	var zero T
	if value == zero {
		return nil
	}
	return value
}

// refusal is the answer to a command that has failed.
func refusal(c command, err error) map[string]any {
	answer := map[string]any{"error": code(c, err), "message": err.Error()}
	var stale *palisade.StaleTokenError
	var other *palisade.OtherVersionError
	switch {
	case errors.As(err, &stale):
		answer["seen"], answer["got"] = unlessZero(stale.Seen), unlessZero(stale.Got)
	case errors.As(err, &other):
		answer["version"] = other.Version
	}
	return answer
}

// follower is a watch. Its lines are written under mu, so that none follows its end.
type follower struct {
	watcher *palisade.Watcher
	ended   bool
}

func (a *adapter) follow(c command) {
	followed := &follower{watcher: a.client.Watch(context.Background(), palisade.WatchOptions{
		Key: c.Key, Prefix: c.Prefix, After: c.After,
	})}
	a.mu.Lock()
	a.watches[c.Name] = followed
	a.mu.Unlock()
	a.say(map[string]any{"id": c.ID, "ok": map[string]any{}})
	go func() {
		for followed.watcher.Next() {
			a.tell(followed, c.Name, described(followed.watcher.Event()))
		}
		var compacted *palisade.CompactedError
		switch err := followed.watcher.Err(); {
		case errors.As(err, &compacted):
			a.tell(followed, c.Name, map[string]any{"event": "compacted", "floor": compacted.Floor})
		case err != nil:
			line := refusal(c, err)
			line["event"] = "unwatched"
			a.tell(followed, c.Name, line)
		}
	}()
}

// tell writes a line of a watch that has not been ended.
func (a *adapter) tell(followed *follower, name string, line map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !followed.ended {
		line["name"] = name
		a.say(line)
	}
}

func (a *adapter) unfollow(c command) (map[string]any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	followed := a.watches[c.Name]
	if followed == nil {
		return nil, &palisade.Refused{Code: "invalid", Message: "there is no watch of this name"}
	}
	followed.ended = true
	followed.watcher.Close()
	return map[string]any{}, nil
}

func described(event palisade.Event) map[string]any {
	if listing := event.Listing; listing != nil {
		locks, records := []string{}, []string{}
		for _, lock := range listing.Locks {
			locks = append(locks, lock.Key)
		}
		for _, record := range listing.Records {
			records = append(records, record.Key)
		}
		return map[string]any{
			"event": "listed", "revision": event.Revision, "complete": listing.Complete, "locks": locks, "records": records,
		}
	}
	line := map[string]any{"event": "changed", "revision": event.Revision, "key": event.Key, "change": event.Kind}
	for name, value := range map[string]any{
		"id": unlessZero(event.ID), "token": unlessZero(event.Token), "version": unlessZero(event.Version),
		"fence": unlessZero(event.Fence), "owner": unlessZero(event.Owner), "session": unlessZero(event.Session),
		"mode": unlessZero(event.Mode), "value": unlessZero(event.Value), "because": unlessZero(event.Because),
	} {
		if value != nil {
			line[name] = value
		}
	}
	return line
}
