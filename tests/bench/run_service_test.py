#!/usr/bin/env python3
"""run_service.py and service_load do what their tables say. No figure is judged. Usage: run_service_test.py BIN"""

import json
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
RUN = pathlib.Path(__file__).with_name("run_service.py")
PEERS = {"grpc-proto-echo", "grpc-raw-echo", "tcp-socket", "tcp-socket-x8", "memcpy"}


def run_service(out, *arguments, size="16KiB"):
    # Python writes no __pycache__ into the sources (-B), nor does what it starts.
    command = [sys.executable, "-B", RUN, "--machine", "test", "--bin", BIN, "--out", out, "--quick", "--rounds", "1",
               "--sizes", size, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


class SocketServer:
    """Answers the plain-socket client: `answer(n, rows)` gives the bytes for its n-th call, None to hang up."""

    def __init__(self, answer):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.answer = answer
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        connection, _ = self.listener.accept()
        with connection, connection.makefile("rb") as stream:
            call = 0
            while header := stream.read(16):
                _, rows = struct.unpack("<qq", header)
                stream.read(rows * 12)
                reply = self.answer(call, rows)
                if reply is None:
                    return
                connection.sendall(reply)
                call += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.thread.join()
        self.listener.close()


def right(rows):
    a = [i % 7 - 3 for i in range(rows * 3)]
    return struct.pack(f"<{rows}f", *(a[3 * r] + 2 * a[3 * r + 1] + 3 * a[3 * r + 2] for r in range(rows)))


class Load:
    """A service_load with ten rows at a plain socket."""

    def __init__(self, address):
        command = [BIN / "service_load", "--mode", "socket", "--target", address, "--rows", "10"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = json.loads(self.process.stdout.readline())

    def run(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()


class LoadTest(unittest.TestCase):
    def test_a_wrong_value_is_seen(self):
        # The fourth row of ten alone: only who looks at every value sees it.
        wrong = lambda _, rows: right(rows)[:12] + struct.pack("<f", 1000) + right(rows)[16:]  # noqa: E731
        with SocketServer(wrong) as server, Load(server.address) as load:
            self.assertEqual((load.ready["ready"], load.ready["code"]), (False, "DATA_LOSS"), load.ready)
            self.assertIn("row 3 is 1000", load.ready["error"])

    def test_failed_calls_are_counted_and_not_timed(self):
        spoil = threading.Event()
        answers = lambda _, rows: struct.pack("<f", 7000) * rows if spoil.is_set() else right(rows)  # noqa: E731
        with SocketServer(answers) as server, Load(server.address) as load:
            self.assertTrue(load.ready["ready"], load.ready)
            good = load.run(f"closed {time.monotonic_ns()} 60000000000 3")
            spoil.set()
            bad = load.run(f"closed {time.monotonic_ns()} 60000000000 3")
        self.assertEqual((good["calls"], len(good["latency_us"]), good["errors"], good["bytes"]), (3, 3, {}, 3 * 160))
        self.assertEqual((bad["calls"], bad["latency_us"], bad["errors"], bad["bytes"]), (3, [], {"DATA_LOSS": 3}, 0))

    def test_a_server_that_goes_is_an_error(self):
        gone = threading.Event()
        with SocketServer(lambda _, rows: None if gone.is_set() else right(rows)) as server:
            with Load(server.address) as load:
                gone.set()
                result = load.run(f"closed {time.monotonic_ns()} 60000000000 1000")
        self.assertEqual(result["latency_us"], [])
        self.assertEqual(result["errors"], {"UNAVAILABLE": 10})  # after so many it gives up

    def test_an_open_loop_counts_from_when_a_call_was_due(self):
        stall = threading.Event()

        def answer(_, rows):
            if stall.is_set():
                stall.clear()
                time.sleep(0.3)  # the stall that is to be seen
            return right(rows)

        with SocketServer(answer) as server, Load(server.address) as load:
            stall.set()
            result = load.run(f"open {time.monotonic_ns()} 50000000 5")
        # The first call stalls; those due 50 and 100 ms later wait for it, and say so.
        latency = result["latency_us"]
        self.assertEqual(len(latency), 5, result)
        for i, least in enumerate((300e3, 250e3, 200e3)):
            self.assertGreaterEqual(latency[i], least, f"call {i}: {result}")


class RunTest(unittest.TestCase):
    def test_rows_of_a_run(self):
        with tempfile.TemporaryDirectory() as out:
            run = run_service(out, "--clients", "1,2", "--places", "inline,inline-unix,shm", "--extras", "open", "--",
                              "--backend", "cpu")
            self.assertEqual(run.returncode, 0, run.stdout)
            kept = json.loads((pathlib.Path(out) / "test-service.json").read_text())
            log = (pathlib.Path(out) / "test-service.log").read_text()
            picture = (pathlib.Path(out) / "test-service.svg").exists()
        self.assertEqual(picture, "no picture: " not in run.stdout, run.stdout)
        self.assertEqual(list(kept["machine"]), ["gpu", "driver", "cpu", "date", "build"])
        pairs = [(row["name"], row.get("peer")) for row in kept["results"]]
        self.assertEqual(len(pairs), len(set(pairs)), "a row for each pair of name and peer")
        for count in (1, 2):
            name = f"service/inline/16KiB/c{count}"
            for suffix in ("", "/throughput"):
                peers = {peer for row, peer in pairs if row == name + suffix}
                self.assertLessEqual(PEERS, peers, name + suffix)
                python = {peer for peer in peers - PEERS if peer.startswith("grpcio-")}
                self.assertEqual(peers - PEERS, python)
                self.assertEqual(not python, "SKIPPED: " in run.stdout, run.stdout)
            for place, peer in (("inline-unix", "unix-socket"), ("shm", "unix-socket"), ("shm", "memcpy")):
                self.assertIn((f"service/{place}/16KiB/c{count}", peer), pairs)
            self.assertIn((f"{name}/open", "grpc-raw-echo"), pairs)
        for row in kept["results"]:
            self.assertGreater(row["value"], 0, row)
            if "peer" in row:
                less_is_better = row["unit"] == "ms"
                ratio = row["peer_value"] / row["value"] if less_is_better else row["value"] / row["peer_value"]
                self.assertAlmostEqual(row["ratio"] / ratio, 1, delta=0.01, msg=f"{row}")
        self.assertIn("closed kernd/stock 16KiB c2 block 0", log)
        self.assertNotIn("left out", run.stdout)

    def test_a_refusal_is_named_and_is_a_failure(self):
        with tempfile.TemporaryDirectory() as out:
            run = run_service(out, "--clients", "1", "--places", "inline", "--extras", "none", "--", "--backend", "cpu",
                              "--memory-limit", "1MiB", size="2MiB")
            rows = json.loads((pathlib.Path(out) / "test-service.json").read_text())["results"]
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertRegex(run.stdout, r"inline +not measured: RESOURCE_EXHAUSTED")
        self.assertEqual(rows, [])

    def test_what_there_is_no_time_for_is_named(self):
        with tempfile.TemporaryDirectory() as out:
            run = run_service(out, "--clients", "1", "--budget", "0", "--", "--backend", "cpu")
        self.assertEqual(run.returncode, 0, run.stdout)
        for what in ("16KiB, 1 client", "open loop of 16KiB", "small calls beside uploads", "memory of the daemon"):
            self.assertIn(f"left out: {what}", run.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
