package main

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"palisade/clients/go"
)

// hold grants the lock with token 17, and keeps the connection open until the client ends it.
func hold(writer http.ResponseWriter, request *http.Request) {
	conn, reader, err := writer.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	sum := sha1.Sum([]byte(request.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	// The acquire comes first; what it says is known.
	_, _ = reader.ReadByte()
	for _, text := range []string{
		`{"waiting":{"session":"s","ttl_ms":30000}}`, `{"granted":{"key":"nightly","token":17,"session":"s","ttl_ms":30000}}`,
	} {
		_, _ = conn.Write(append([]byte{0x81, byte(len(text))}, text...))
	}
	_, _ = io.Copy(io.Discard, reader)
}

// Goal: an attempt whose answer was lost is done late, and the next one finds its version: the page is written.
func TestAPageThatWasWrittenLateIsWritten(t *testing.T) {
	reads, writes := 0, 0
	node := httptest.NewServer(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		switch {
		case request.URL.Path == "/v1/hold":
			hold(writer, request)
		case request.Method == http.MethodGet && reads == 0:
			reads++
			writer.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(writer, `{"error":"no_record","message":"m"}`)
		case request.Method == http.MethodGet:
			writer.Header().Set("X-Version", "5")
			writer.Header().Set("X-Max-Fence", "17")
			_, _ = io.WriteString(writer, "page 1")
		case writes == 0:
			writes++
			writer.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(writer, `{"error":"leadership_lost","message":"m"}`)
		default:
			writer.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(writer, `{"error":"other_version","message":"m","version":5}`)
		}
	}))
	defer node.Close()
	client, err := palisade.NewClient(strings.TrimPrefix(node.URL, "http://"), palisade.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lock, err := client.Lock(context.Background(), key, palisade.LockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	defer lock.Release(ended)
	if version, err := write(client.Records, "page 1", 0, lock); version != 5 || err != nil {
		t.Fatal(version, err)
	}
}
