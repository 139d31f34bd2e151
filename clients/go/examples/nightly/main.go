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
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"palisade/clients/go"
)

var (
	endpoints = "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403"
	records   = http.Client{Timeout: 5 * time.Second}
)

func main() {
	log.SetFlags(0)
	if named := os.Getenv("PALISADE_ENDPOINTS"); named != "" {
		endpoints = named
	}
	client, err := palisade.NewClient(endpoints, palisade.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("process %d asks for the lock\n", os.Getpid())
	options := palisade.LockOptions{TTL: 5 * time.Second, Wait: 10 * time.Minute}
	if err := client.Do(context.Background(), "nightly", options, job); err != nil {
		// ErrLost if the lock was lost, also when the job returned nil.
		log.Fatal("the job is not done: ", err)
	}
	fmt.Println("the job is done")
}

func job(_ context.Context, lock *palisade.Lock) error {
	fmt.Printf("process %d holds the lock with token %d\n", os.Getpid(), lock.Token())
	for page := 1; page <= 60; page++ {
		text := fmt.Sprintf("page %d", page)
		written, err := write(text, lock)
		if err != nil || !written {
			return err
		}
		fmt.Println(text, "is written")
		time.Sleep(time.Second)
	}
	return nil
}

// write writes the record "nightly". It returns false if the cluster refuses the token.
//
// Any node will do: it forwards the request to the leader. While there is no leader, or a node is down, the job tries
// the next node.
func write(text string, lock *palisade.Lock) (bool, error) {
	for ; ; time.Sleep(200 * time.Millisecond) {
		for _, endpoint := range strings.Split(endpoints, ",") {
			url := "http://" + endpoint + "/v1/kv/nightly"
			request, err := http.NewRequest(http.MethodPut, url, strings.NewReader(text))
			if err != nil {
				return false, err
			}
			lock.SetHeader(request.Header)
			response, err := records.Do(request)
			if err != nil {
				continue
			}
			answer, _ := io.ReadAll(response.Body)
			response.Body.Close()
			switch response.StatusCode {
			case http.StatusOK:
				return true, nil
			case http.StatusConflict:
				fmt.Printf("%s is refused: %s\n", text, answer)
				return false, nil
			case http.StatusServiceUnavailable:
			default:
				return false, fmt.Errorf("%s: %s %s", url, response.Status, answer)
			}
		}
	}
}
