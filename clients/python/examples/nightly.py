"""A job under a lock, each of whose writes has the lock's fencing token.

The job writes a record of Palisade, which refuses a stale token; a database would do the same in a
transaction (README.md, "Fencing"). It never asks whether it still holds the lock: a process can be
paused after any question, so what protects the record is the token. The project's README says
which faults to try while the job runs: "A job that survives the leader, and notices a pause".

    PALISADE_ENDPOINTS=127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403 python nightly.py
"""

import os
import sys
import time
import urllib.error
import urllib.request

import palisade

ENDPOINTS = os.environ.get(
    "PALISADE_ENDPOINTS", "127.0.0.1:7401,127.0.0.1:7402,127.0.0.1:7403"
)


def write(text: str, fence: dict[str, str]) -> bool:
    """Writes the record `nightly`. False if the cluster refuses the token.

    Any node will do: it forwards the request to the leader. While there is no leader, or a node is
    down, the job tries the next node."""
    while True:
        for endpoint in ENDPOINTS.split(","):
            url = f"http://{endpoint}/v1/kv/nightly"
            request = urllib.request.Request(url, text.encode(), fence, method="PUT")
            try:
                with urllib.request.urlopen(request, timeout=5):
                    return True
            except urllib.error.HTTPError as refusal:
                if refusal.code == 409:
                    print(f"{text} is refused: {refusal.read().decode()}", flush=True)
                    return False
                if refusal.code != 503:
                    raise
            except OSError:
                pass
        time.sleep(0.2)


def main() -> None:
    client = palisade.Client(ENDPOINTS)
    print(f"process {os.getpid()} asks for the lock", flush=True)
    with client.lock("nightly", ttl=5, wait=600) as lock:
        print(f"process {os.getpid()} holds the lock with token {lock.token}", flush=True)
        fence = lock.headers()
        for page in range(1, 61):
            if not write(f"page {page}", fence):
                break
            print(f"page {page} is written", flush=True)
            time.sleep(1)
    # `with` raises LockLost above if the lock was lost, however the body ended.
    print("the job is done")


if __name__ == "__main__":
    try:
        main()
    except palisade.PalisadeError as error:
        sys.exit(f"the job is not done: {error}")
