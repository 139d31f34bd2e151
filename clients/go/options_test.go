package palisade

import (
	"crypto/tls"
	"strings"
	"testing"
)

// The lists that the command line and the clients of all languages read, or refuse. The same stand in
// client/src/endpoints.rs, and in the tests of the clients in Python and TypeScript.
func TestEndpointsAreReadAsTheCommandLineReadsThem(t *testing.T) {
	for list, want := range map[string]string{
		"a:1,2,b:3,4":                                 "a:1 a:2 b:3 b:4",
		"[::1]:7401,7402":                             "[::1]:7401 [::1]:7402",
		"10.0.0.1:7400, 127.0.0.1:7401,7402":          "10.0.0.1:7400 127.0.0.1:7401 127.0.0.1:7402",
		"http://127.0.0.1:7401 http://127.0.0.1:7402": "127.0.0.1:7401 127.0.0.1:7402",
		"http://a:1/,2, http://[::1]:3":               "a:1 a:2 [::1]:3",
	} {
		endpoints, err := splitEndpoints(list, false)
		if got := strings.Join(endpoints, " "); err != nil || got != want {
			t.Errorf("%q is read as %q, %v", list, got, err)
		}
	}
	for _, list := range []string{
		"", "7401", "host", "host:", "host:0", "host:70000", ":1", "::1:7401", "a:1,,a:2", "a:+1", "https://a",
		"https://a:1/x", "http://a", "http://a:1/x",
	} {
		if endpoints, err := splitEndpoints(list, true); err == nil {
			t.Errorf("%q is read as %q", list, endpoints)
		}
	}
}

// Goal: a node that is named with https:// is dialled with TLS or not at all.
func TestAnEndpointWithHTTPSDemandsTLS(t *testing.T) {
	const list = "https://a:1/,2"
	endpoints, err := splitEndpoints(list, true)
	if got := strings.Join(endpoints, " "); err != nil || got != "a:1 a:2" {
		t.Errorf("%q is read as %q, %v", list, got, err)
	}
	if _, err := NewClient(list, Options{TLS: &tls.Config{}}); err != nil {
		t.Error(err)
	}
	if _, err := NewClient(list, Options{}); err == nil || !strings.Contains(err.Error(), "https://a:1/ demands TLS") {
		t.Errorf("the error is %v", err)
	}
}
