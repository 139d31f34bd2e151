package palisade

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Options say what a client connects with, and how patient it is. The zero value is for a cluster without TLS.
type Options struct {
	// TLS secures the connections, to the endpoints and to every node that the cluster names: RootCAs with the
	// cluster's CA, and Certificates with the client's certificate unless it has a Token. nil: no TLS.
	TLS *tls.Config
	// Token proves the client's identity, as Authorization: Bearer. It needs TLS. (It has nothing to do with a fencing
	// token.)
	Token string
	// Patience is for how long a Lock that does not wait, a read, or a write of records looks for a node that can answer,
	// before it fails with ErrUnreachable. A Lock that waits looks for as long as it waits, and for 1 s at least (or for
	// Patience, if that is shorter). 0 stands for 10 s.
	Patience time.Duration
}

// LockOptions say how a lock is asked for. The zero value asks for an exclusive lock with a TTL of 30 s, and does not
// wait for it.
type LockOptions struct {
	// TTL is how long the lock outlives a holder that is not heard any more: 100 ms to 24 h, in whole milliseconds.
	// 0 stands for 30 s. The client renews the lock as long as its process runs, so this is no limit for the work.
	TTL time.Duration
	// Wait is how long to stand in the queue for a lock that is held, at most 24 h. 0: not at all.
	Wait time.Duration
	// Shared lets others hold the lock at the same time that ask for it so, as readers do.
	Shared bool
	// Permits and Of make the lock a semaphore: the request takes Permits of its Of permits.
	Permits, Of uint32
	// MaxQueue refuses the request as ErrHeld where so many sessions wait already. 0: however many wait.
	MaxQueue uint32
	// Owner is a name for operators to read, at most 256 bytes. "" stands for the host's name and the process's ID.
	Owner string
	// Value is a text for other clients to read while this one holds the lock, at most 4,096 bytes: its address, for
	// instance. [Lock.SetValue] replaces it.
	Value string
}

const (
	defaultTTL      = 30 * time.Second
	defaultPatience = 10 * time.Second
	maxWait         = 24 * time.Hour
	maxOwner        = 256
)

func invalid(format string, args ...any) error {
	return &Refused{Code: "invalid", Message: fmt.Sprintf(format, args...)}
}

// claim checks what cannot be said to the server, and leaves all other bounds to it.
func (o LockOptions) claim(keys []string) (claim, error) {
	c := claim{Permits: o.Permits, Of: o.Of, MaxQueue: o.MaxQueue, Owner: o.Owner}
	if len(keys) == 0 {
		return c, invalid("no key is given")
	}
	for _, text := range append([]string{o.Owner, o.Value}, keys...) {
		if !utf8.ValidString(text) {
			return c, invalid("%q is not UTF-8", text)
		}
	}
	if len(keys) == 1 {
		c.Key = keys[0]
	} else {
		c.Keys = append(c.Keys, keys...)
	}
	if c.Key == "" && len(keys) == 1 {
		return c, invalid("the key is empty")
	}
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if o.TTL < minTTL || o.TTL > maxTTL {
		return c, invalid("the TTL is %v; it must be %v to %v", o.TTL, minTTL, maxTTL)
	}
	if o.Wait < 0 || o.Wait > maxWait {
		return c, invalid("the wait is %v; it must be 0 to %v", o.Wait, maxWait)
	}
	c.TTL = o.TTL.Milliseconds()
	c.Wait = (o.Wait + time.Millisecond - 1).Milliseconds()
	if o.Shared {
		c.Mode = "shared"
	}
	if o.Value != "" {
		c.Value = &o.Value
	}
	if c.Owner == "" {
		c.Owner = defaultOwner()
	}
	return c, nil
}

// defaultOwner is the host's name and the process's ID.
func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil || !utf8.ValidString(host) {
		host = "unknown"
	}
	process := ":" + strconv.Itoa(os.Getpid())
	if len(host)+len(process) > maxOwner {
		host = "unknown"
	}
	return host + process
}

// splitEndpoints reads a list of endpoints, separated by commas or spaces. A bare port takes the host of the endpoint
// before it. An endpoint may be a URL, as palisade dev prints it; https:// demands that the client is secure, and http://
// says nothing about it.
func splitEndpoints(list string, secure bool) ([]string, error) {
	var endpoints []string
	for _, part := range strings.Split(list, ",") {
		words := strings.Fields(part)
		if len(words) == 0 {
			return nil, errors.New("palisade: an endpoint is missing; name one node or several as HOST:PORT,HOST:PORT")
		}
		for _, word := range words {
			endpoint := withoutScheme(word)
			if last := len(endpoints) - 1; last >= 0 && isPort(word) {
				before := endpoints[last]
				endpoint = before[:strings.LastIndex(before, ":")+1] + word
			}
			if !isAddress(endpoint) {
				return nil, fmt.Errorf("palisade: the endpoint %q is not HOST:PORT", word)
			}
			if strings.HasPrefix(word, "https://") && !secure {
				return nil, fmt.Errorf("palisade: the endpoint %s demands TLS, and Options.TLS is nil", word)
			}
			endpoints = append(endpoints, endpoint)
		}
	}
	return endpoints, nil
}

// withoutScheme is the address in a URL, and every other text as it is.
func withoutScheme(text string) string {
	for _, scheme := range []string{"http://", "https://"} {
		if strings.HasPrefix(text, scheme) {
			return strings.TrimSuffix(strings.TrimPrefix(text, scheme), "/")
		}
	}
	return text
}

// isAddress reports whether text is HOST:PORT, and can stand in a request's Host field.
func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || strings.ContainsAny(text, "/@?# \t\r\n") {
		return false
	}
	return isPort(port)
}

func isPort(text string) bool {
	number, err := strconv.ParseUint(text, 10, 16)
	return err == nil && number > 0
}
