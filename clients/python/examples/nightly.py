"""A job under a lock, each of whose writes has the lock's fencing token.

The job writes a record of Palisade, which refuses a stale token; a database would do the same in a
transaction (README.md, "Fencing"). It never asks whether it still holds the lock: a process can be
paused after any question, so what protects the record is the token. Each write replaces the version
of the one before, so the client may repeat it when a node dies and its answer is lost.

The project's README says which faults to try while the job runs: "A job that survives the leader,
and notices a pause".

    PALISADE_ENDPOINTS=127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 python nightly.py
"""

import os
import sys
import time

import palisade

ENDPOINTS = os.environ.get("PALISADE_ENDPOINTS", "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403")


def main() -> None:
    client = palisade.Client(ENDPOINTS, timeout=60)
    print(f"process {os.getpid()} asks for the lock", flush=True)
    with client.lock("nightly", ttl=5, wait=600) as lock:
        print(f"process {os.getpid()} holds the lock with token {lock.token}", flush=True)
        try:
            version = client.records.get("nightly").version
        except palisade.NoRecord:
            version = 0
        for page in range(1, 61):
            text = f"page {page}"
            try:
                version = client.records.put("nightly", text, lock=lock, if_version=version)
            except palisade.StaleToken as refusal:
                print(f"{text} is refused: {refusal}", flush=True)
                break
            print(f"{text} is written", flush=True)
            time.sleep(1)
    # `with` raises LockLost above if the lock was lost, however the body ended.
    print("the job is done")


if __name__ == "__main__":
    try:
        main()
    except palisade.PalisadeError as error:
        sys.exit(f"the job is not done: {error}")
