"""The processes of the service bench: servers, and groups of clients that begin together."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

import daemon

PEER_ARGUMENTS = {"proto": ["proto"], "raw": ["raw"], "socket": ["socket"]}
PYTHON_PEER = pathlib.Path(__file__).resolve().parents[1] / "peers/grpcio_matmul.py"
# What this environment says of the heap is not for the programs that are measured.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}


class NotThere(Exception):
    """Something that cannot be measured, and why. `code`: of the status, where a call failed."""

    def __init__(self, why, code=""):
        super().__init__(f"{code}: {why}" if code else why)
        self.code = code


class Kernd(daemon.Daemon):
    """A daemon on a TCP port and a unix socket, that takes shared memory. SystemExit where it does not start."""

    def __init__(self, bin_folder, flags):
        self.own = tempfile.TemporaryDirectory(prefix="kernd-bench-")
        self.log = open(f"{self.own.name}/log", "w+", encoding="utf-8")
        self.unix = f"unix:{self.own.name}/socket"
        try:
            own_flags = ["--listen", self.unix, "--log-calls", "false", "--max-message-bytes", "2047MiB",
                         "--shared-memory-socket", f"{self.own.name}/shared", "--shared-memory-limit", "50%"]
            super().__init__(bin_folder, [*own_flags, *flags], self.log)
        except SystemExit as failed:
            self.log.seek(0)
            raise SystemExit(f"{failed}: {self.log.read().strip()}") from None
        ports = (pathlib.Path(self.folder.name) / "ports").read_text()
        self.tcp = re.search(r"^grpc=((?!unix:).+)$", ports, re.MULTILINE)[1]

    def memory(self, field):
        """VmRSS or VmHWM in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(rf"^{field}:\s*(\d+) kB$", status, re.MULTILINE)
        if not match:
            raise NotThere("kernd has ended", "UNAVAILABLE")
        return int(match[1]) * 1024

    def end(self):
        """Whatever state it is in."""
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.folder.cleanup()
        self.own.cleanup()


class Servers:
    """kernd and the peers, each started when first asked for, all ended with the `with` block."""

    def __init__(self, bin_folder, kernd_flags, python):
        self.bin, self.kernd_flags, self.python = bin_folder, kernd_flags, python
        self.folder = tempfile.TemporaryDirectory(prefix="kernd-bench-")
        self.processes, self.addresses, self.missing = [], {"none": ""}, {}
        self.tensor_library = ""  # of the Python peer

    def __enter__(self):
        self.kernd = Kernd(self.bin, self.kernd_flags)
        self.addresses |= {"kernd": self.kernd.tcp, "kernd-unix": self.kernd.unix}
        return self

    def __exit__(self, *_):
        self.kernd.end()
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        self.folder.cleanup()

    def address(self, name):
        if name in self.missing:
            raise NotThere(self.missing[name])
        if name not in self.addresses:
            if name == "grpcio":
                command = [self.python, PYTHON_PEER, self.bin.parent / "share/kernd.protoset"]
            elif name == "socket-unix":
                command = [self.bin / "service_peer", "socket", "--unix", f"{self.folder.name}/socket"]
            else:
                command = [self.bin / "service_peer", *PEER_ARGUMENTS[name]]
            self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                                   env=ENVIRONMENT))
            words = self.processes[-1].stdout.readline().split()
            if not words or words[0] == "SKIPPED:":
                self.missing[name] = " ".join(words[1:]) or "it does not start"
                raise NotThere(self.missing[name])
            self.addresses[name] = words[0]
            if name == "grpcio":
                self.tensor_library = words[1]
        return self.addresses[name]


class Clients:
    """`count` processes of service_load, all connected and with one right result each, for a `with` block."""

    def __init__(self, bin_folder, mode, address, rows, count):
        command = [bin_folder / "service_load", "--mode", mode, "--target", address, "--rows", str(rows)]
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                           env=ENVIRONMENT) for _ in range(count)]

    def __enter__(self):
        answers = [self._answer(process) for process in self.processes]  # of all, so that none is left in mid-sentence
        for answer in answers:
            if not answer.get("ready"):
                self.__exit__()
                raise NotThere(answer["error"], answer["code"])
        return self

    def __exit__(self, *_):
        for process in self.processes:
            try:
                process.stdin.close()  # it ends
            except BrokenPipeError:
                pass
        for process in self.processes:
            process.wait()
            process.stdout.close()

    @staticmethod
    def _answer(process):
        line = process.stdout.readline()
        if not line:
            return {"ready": False, "code": "INTERNAL", "error": f"service_load has ended with code {process.wait()}"}
        return json.loads(line)

    def closed(self, seconds, calls):
        """Together, one call after the other each, for `seconds` or until each has made `calls`. A result a client."""
        start = time.monotonic_ns() + 10_000_000
        return self.run([f"closed {start} {int(seconds * 1e9)} {calls}"] * len(self.processes))

    def open(self, calls_per_second, seconds):
        """Calls that are due at a constant rate of all clients together, in turns."""
        interval = int(1e9 * len(self.processes) / calls_per_second)
        calls = max(1, int(seconds * 1e9 / interval))
        start = time.monotonic_ns() + 10_000_000
        return self.run([f"open {start + interval * i // len(self.processes)} {interval} {calls}"
                         for i in range(len(self.processes))])

    def begin(self, lines):
        for process, line in zip(self.processes, lines):
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # finish() tells

    def finish(self):
        results = [self._answer(process) for process in self.processes]
        for result in results:
            if "latency_us" not in result:
                raise NotThere(result["error"], result["code"])
        return results

    def run(self, lines):
        self.begin(lines)
        return self.finish()
