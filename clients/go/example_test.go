package palisade_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"palisade/clients/go"
)

// A job that runs on one machine at a time.
func ExampleClient_Do() {
	client, err := palisade.NewClient("127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403", palisade.Options{})
	if err != nil {
		log.Fatal(err)
	}
	job := func(ctx context.Context, lock *palisade.Lock) error {
		fmt.Println("the nightly job runs, with token", lock.Token())
		return nil
	}
	err = client.Do(context.Background(), "nightly", palisade.LockOptions{}, job)
	switch {
	case errors.Is(err, palisade.ErrHeld):
		fmt.Println("another machine runs the job")
	case errors.Is(err, palisade.ErrLost):
		log.Fatal("the lock was lost while the job ran: ", err)
	case err != nil:
		log.Fatal(err)
	}
}

// A lock that is held for longer than one function runs.
func ExampleClient_Lock() {
	client, err := palisade.NewClient("127.0.0.1:7401", palisade.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lock, err := client.Lock(ctx, "leader", palisade.LockOptions{
		TTL: 5 * time.Second, Wait: time.Minute, Value: "10.0.0.7:8080",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() {
		if err := lock.Release(context.Background()); err != nil {
			log.Print(err)
		}
	}()
	select {
	case <-lock.Lost():
		log.Print("no longer the leader: ", lock.Err())
	case <-time.After(time.Hour):
	}
}

// A cluster with TLS, and a client that proves its identity by a token.
func ExampleNewClient_tls() {
	pem, err := os.ReadFile("cluster-ca.pem")
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	token, err := os.ReadFile("worker.token")
	if err != nil {
		log.Fatal(err)
	}
	client, err := palisade.NewClient("lock-1.internal:7401,lock-2.internal:7401", palisade.Options{
		TLS:   &tls.Config{RootCAs: roots},
		Token: strings.TrimSpace(string(token)),
	})
	if err != nil {
		log.Fatal(err)
	}
	_ = client
}

// A resource that is reached over HTTP: it compares X-Fence-Token with the highest token that it has seen, and refuses a
// lower one.
func ExampleLock_SetHeader() {
	var lock *palisade.Lock // as granted by Client.Lock

	request, err := http.NewRequestWithContext(lock.Context(), http.MethodPut, "http://storage/report", strings.NewReader("…"))
	if err != nil {
		log.Fatal(err)
	}
	lock.SetHeader(request.Header)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err, palisade.Cause(lock.Context()))
	}
	defer response.Body.Close()
}

// A resource that is a database: the token is compared, kept, and used in the transaction of the write.
func ExampleLock_Token_sql() {
	// CREATE TABLE fences (name TEXT PRIMARY KEY, token BIGINT NOT NULL);
	write := func(ctx context.Context, db *sql.DB, lock *palisade.Lock) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		result, err := tx.ExecContext(ctx,
			`INSERT INTO fences AS f (name, token) VALUES ('report', $1)
			 ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token`,
			int64(lock.Token()))
		if err != nil {
			return err
		}
		if rows, err := result.RowsAffected(); err != nil || rows == 0 {
			return fmt.Errorf("token %d is stale: a later holder has written (%v)", lock.Token(), err)
		}
		if _, err := tx.ExecContext(ctx, `UPDATE reports SET content = $1`, "…"); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = write
}

// A checkpoint that only the holder of a lock writes.
func ExampleRecords_Put() {
	var client *palisade.Client // of palisade.NewClient
	var lock *palisade.Lock     // as granted by Client.Lock
	ctx := lock.Context()

	last, err := client.Records.Get(ctx, "checkpoint", palisade.ReadOptions{})
	if errors.Is(err, palisade.ErrNoRecord) {
		last, err = &palisade.Record{}, nil
	}
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Records.Put(ctx, "checkpoint", []byte("page 7"), palisade.WriteOptions{
		Lock: lock, IfVersion: palisade.Version(last.Version),
	})
	switch {
	case errors.Is(err, palisade.ErrStaleToken):
		log.Fatal("the lock was lost, and another holder may be at work: ", err)
	case errors.Is(err, palisade.ErrUnknownOutcome):
		log.Print("read the record to find out: ", err)
	case err != nil:
		log.Fatal(err)
	}
}

// A program that follows who leads.
func ExampleClient_Watch() {
	var client *palisade.Client // of palisade.NewClient

	watcher := client.Watch(context.Background(), palisade.WatchOptions{Key: "leader"})
	defer watcher.Close()
	for watcher.Next() {
		switch event := watcher.Event(); event.Kind {
		case "listing":
			for _, lock := range event.Listing.Locks {
				for _, holder := range lock.Holders {
					fmt.Println("the leader is", holder.Owner, "at", holder.Value)
				}
			}
		case "granted", "value":
			fmt.Println("the leader has token", event.Token, "and is at", event.Value)
		}
	}
	log.Fatal(watcher.Err())
}
