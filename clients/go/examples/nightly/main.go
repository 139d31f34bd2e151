// Command nightly is a job under a lock, each of whose writes has the lock's fencing token.
//
// The job writes a record of Palisade, which refuses a stale token; a database would do the same in a transaction
// (README.md, "Fencing"). It never asks whether it still holds the lock: a process can be paused after any question, so
// what protects the record is the token. The project's README says which faults to try while the job runs: "A job that
// survives the leader, and notices a pause".
//
//	PALISADE_ENDPOINTS=127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 go run ./examples/nightly
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"palisade/clients/go"
)

const key = "nightly"

func main() {
	log.SetFlags(0)
	endpoints := "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403"
	if named := os.Getenv("PALISADE_ENDPOINTS"); named != "" {
		endpoints = named
	}
	client, err := palisade.NewClient(endpoints, palisade.Options{Patience: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("process %d asks for the lock\n", os.Getpid())
	options := palisade.LockOptions{TTL: 5 * time.Second, Wait: 10 * time.Minute}
	err = client.Do(context.Background(), key, options, func(ctx context.Context, lock *palisade.Lock) error {
		return job(client.Records, lock)
	})
	if err != nil {
		// ErrLost if the lock was lost, also when the job returned nil.
		log.Fatal("the job is not done: ", err)
	}
	fmt.Println("the job is done")
}

func job(records palisade.Records, lock *palisade.Lock) error {
	fmt.Printf("process %d holds the lock with token %d\n", os.Getpid(), lock.Token())
	var version uint64 // 0: there is no record yet
	last, err := records.Get(context.Background(), key, palisade.ReadOptions{})
	if err == nil {
		version = last.Version
	} else if !errors.Is(err, palisade.ErrNoRecord) {
		return err
	}
	for page := 1; page <= 60; page++ {
		text := fmt.Sprintf("page %d", page)
		version, err = write(records, text, version, lock)
		if errors.Is(err, palisade.ErrStaleToken) {
			fmt.Printf("%s is refused: %v\n", text, err)
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Println(text, "is written")
		time.Sleep(time.Second)
	}
	return nil
}

// write writes the record, and returns its new version.
//
// With the version of the page before, a page is never written late over the next one. If its answer is lost, or if an
// earlier attempt was done late and this one finds another version, the record tells whether the page was written: while
// this job holds the lock, no other one writes.
func write(records palisade.Records, text string, version uint64, lock *palisade.Lock) (uint64, error) {
	ctx := context.Background()
	for {
		options := palisade.WriteOptions{Lock: lock, IfVersion: palisade.Version(version)}
		written, err := records.Put(ctx, key, []byte(text), options)
		if !errors.Is(err, palisade.ErrUnknownOutcome) && !errors.Is(err, palisade.ErrOtherVersion) {
			return written, err
		}
		record, err := records.Get(ctx, key, palisade.ReadOptions{})
		switch {
		case errors.Is(err, palisade.ErrNoRecord):
			version = 0
		case err != nil:
			return 0, err
		case record.Fence == lock.Token() && string(record.Value) == text:
			return record.Version, nil
		default:
			version = record.Version
		}
	}
}
