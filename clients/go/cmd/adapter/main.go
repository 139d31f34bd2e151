// Adapter runs the Go client on commands from standard input, for the scenarios that the clients of all languages must
// pass.
//
//	adapter --endpoints HOST:PORT,… [--ca FILE [--cert FILE --cert-key FILE | --token TEXT]]
//
// It reads one JSON object a line and writes one a line: answers with the command's id, and events. Commands run
// concurrently. It ends at "quit", or at the end of its input, and releases nothing. It uses only the public
// interface of the client.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"palisade/clients/go"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "adapter:", err)
		os.Exit(1)
	}
}

func run() error {
	endpoints := flag.String("endpoints", "", "the nodes, as `HOST:PORT,…`")
	ca := flag.String("ca", "", "the cluster's CA, a PEM `file`")
	cert := flag.String("cert", "", "the client's certificate, a PEM `file`")
	key := flag.String("cert-key", "", "its private key, a PEM `file`")
	token := flag.String("token", "", "the `text` of a bearer token")
	flag.Parse()
	options := palisade.Options{Token: *token}
	if *ca != "" {
		config, err := secure(*ca, *cert, *key)
		if err != nil {
			return err
		}
		options.TLS = config
	}
	client, err := palisade.NewClient(*endpoints, options)
	if err != nil {
		return err
	}
	a := &adapter{client: client, holds: map[string]*hold{}, watches: map[string]*follower{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("%q is no command: %w", lines.Text(), err)
		}
		if c.Do == "quit" {
			return nil
		}
		a.start(c)
	}
	return lines.Err()
}

// secure trusts the CA, and presents the certificate if there is one.
func secure(ca, cert, key string) (*tls.Config, error) {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", ca)
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// command is a line of the input.
type command struct {
	ID       int64    `json:"id"`
	Do       string   `json:"do"`
	Name     string   `json:"name"`
	Key      string   `json:"key"`
	Keys     []string `json:"keys"`
	TTL      int64    `json:"ttl_ms"`
	Wait     int64    `json:"wait_ms"`
	Owner    string   `json:"owner"`
	Mode     string   `json:"mode"`
	Permits  uint32   `json:"permits"`
	Of       uint32   `json:"of"`
	MaxQueue uint32   `json:"max_queue"`
	Value    string   `json:"value"`

	Under      string      `json:"under"`
	IfVersion  *uint64     `json:"if_version"`
	Conditions []condition `json:"conditions"`
	Changes    []change    `json:"changes"`
	Prefix     string      `json:"prefix"`
	Limit      int         `json:"limit"`
	After      string      `json:"after"`
}

func (c command) options() palisade.LockOptions {
	return palisade.LockOptions{
		TTL: time.Duration(c.TTL) * time.Millisecond, Wait: time.Duration(c.Wait) * time.Millisecond,
		Shared: c.Mode == "shared", Permits: c.Permits, Of: c.Of, MaxQueue: c.MaxQueue, Owner: c.Owner, Value: c.Value,
	}
}

// hold is what a name stands for: an acquire, and the lock once it is granted.
type hold struct {
	cancel context.CancelFunc
	lock   *palisade.Lock
}

type adapter struct {
	client *palisade.Client
	output sync.Mutex

	mu      sync.Mutex
	holds   map[string]*hold
	watches map[string]*follower
}

// say writes a line.
func (a *adapter) say(line map[string]any) {
	a.output.Lock()
	defer a.output.Unlock()
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	if _, err := os.Stdout.Write(append(text, '\n')); err != nil {
		os.Exit(1)
	}
}

// start executes a command in the background. The name of an acquire is known when the next command is read.
func (a *adapter) start(c command) {
	ctx, cancel := context.WithCancel(context.Background())
	a.mu.Lock()
	named := a.holds[c.Name]
	if c.Do == "acquire" {
		named = &hold{cancel: cancel}
		a.holds[c.Name] = named
	}
	a.mu.Unlock()
	if c.Do == "watch" {
		cancel()
		a.follow(c)
		return
	}
	go func() {
		defer cancel()
		ok, err := a.carryOut(ctx, c, named)
		answer := map[string]any{"id": c.ID, "ok": ok}
		if err != nil {
			answer = refusal(c, err)
			answer["id"] = c.ID
		}
		if c.Do == "acquire" || c.Do == "release" {
			answer["at_us"] = time.Now().UnixMicro()
		}
		a.say(answer)
		if c.Do == "acquire" && err == nil {
			a.watch(c.Name, named.lock)
		}
	}()
}

// watch tells the loss of a lock.
func (a *adapter) watch(name string, lock *palisade.Lock) {
	<-lock.Context().Done()
	at := time.Now().UnixMicro()
	var lost *palisade.LostError
	if errors.As(lock.Err(), &lost) {
		a.say(map[string]any{"event": "lost", "name": name, "error": lost.Code, "at_us": at})
	}
}

var errNoLock = &palisade.Refused{Code: "invalid", Message: "no lock was acquired under this name"}

func (a *adapter) carryOut(ctx context.Context, c command, named *hold) (map[string]any, error) {
	switch c.Do {
	case "acquire":
		return a.acquire(ctx, c, named)
	case "put", "append", "delete", "transact":
		return a.write(ctx, c)
	case "get", "show", "list":
		return a.read(ctx, c)
	case "unwatch":
		return a.unfollow(c)
	}
	if named == nil {
		return nil, errNoLock
	}
	if c.Do == "cancel" {
		named.cancel()
		return map[string]any{}, nil
	}
	lock := a.lockOf(named)
	if lock == nil {
		return nil, errNoLock
	}
	switch c.Do {
	case "state":
		// Remaining looks first: a lock that is found expired by it is not valid either.
		remaining := lock.Remaining().Milliseconds()
		return map[string]any{"valid": lock.Valid(), "token": lock.Token(), "remaining_ms": remaining}, nil
	case "release":
		return map[string]any{}, lock.Release(ctx)
	case "value":
		return map[string]any{}, lock.SetValue(ctx, c.Value)
	}
	return nil, &palisade.Refused{Code: "invalid", Message: fmt.Sprintf("there is no command %q", c.Do)}
}

// lockOf is the lock of a hold, if it was granted.
func (a *adapter) lockOf(named *hold) *palisade.Lock {
	a.mu.Lock()
	defer a.mu.Unlock()
	if named == nil {
		return nil
	}
	return named.lock
}

func (a *adapter) acquire(ctx context.Context, c command, named *hold) (map[string]any, error) {
	keys := c.Keys
	if keys == nil {
		keys = []string{c.Key}
	}
	lock, err := a.client.LockAll(ctx, keys, c.options())
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	named.lock = lock
	a.mu.Unlock()
	return map[string]any{"token": lock.Token()}, nil
}

// code is the error's name in an answer.
func code(c command, err error) string {
	var refused *palisade.Refused
	var lost *palisade.LostError
	switch {
	case errors.As(err, &lost) && c.Do == "release":
		return "lost"
	case errors.As(err, &lost):
		return lost.Code
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, palisade.ErrUnknownOutcome):
		return "unknown"
	case errors.Is(err, palisade.ErrUnreachable):
		return "unreachable"
	case errors.As(err, &refused):
		return refused.Code
	case errors.Is(err, palisade.ErrReleased):
		return "released"
	}
	return "invalid"
}
