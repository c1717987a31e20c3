"""Starts ranks as torchrun does, without torch: each in its own session, watched, reported.

It takes the flags of torchrun that the launcher uses, so that most launcher tests need not pay
the seconds that importing torch takes. The real agent is tested beside it.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--standalone", "--no-python"):
        parser.add_argument(flag, action="store_true")
    for flag in ("--nnodes", "--nproc-per-node", "--local-addr", "--max-restarts"):
        parser.add_argument(flag)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    size = int(options.nproc_per_node)
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            options.command,
            start_new_session=True,
            env={**os.environ, **rendezvous, "RANK": str(rank), "WORLD_SIZE": str(size)},
        )
        for rank in range(size)
    ]
    # A handler that waits for ranks itself would hang where it interrupts such a wait.
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    while not told and any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            break
        time.sleep(0.02)
    code = stop(ranks)
    if told:
        return code
    for number, rank in enumerate(ranks):
        if rank.returncode:
            sys.stderr.write(
                f"  rank      : {number} (local_rank: {number})\n"
                f"  exitcode  : {rank.returncode} (pid: {rank.pid})\n"
            )
    return int(any(rank.returncode for rank in ranks))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(ranks: list[subprocess.Popen[bytes]]) -> int:
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    for rank in ranks:
        rank.wait()
    return 1


if __name__ == "__main__":
    sys.exit(main())
