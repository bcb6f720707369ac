"""A daemon of this build for the benches: on loopback, at ports of its own, ended with the block."""

import contextlib
import os
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


class Daemon:
    def __init__(self, programs, arguments, log):
        self.programs = pathlib.Path(programs)
        self.folder = tempfile.TemporaryDirectory()
        ports = pathlib.Path(self.folder.name) / "ports"
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [self.programs / "kernd", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--port-file", ports,
             *arguments], stderr=log)
        while not ports.exists():
            self.check()
            time.sleep(0.001)
        lines = dict(line.split("=", 1) for line in ports.read_text().splitlines())
        self.grpc, self.http = lines["grpc"], lines["http"]
        while not self.is_ready():
            self.check()
            time.sleep(0.001)
        self.ready_s = time.monotonic() - begun

    def check(self):
        if self.process.poll() is not None:
            raise SystemExit(f"kernd ended with code {self.process.returncode}; see the log")

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"http://{self.http}/readyz", timeout=5).status == 200
        except urllib.error.HTTPError:
            return False

    def metrics(self):
        """{"kernd_memory_used_bytes{pool=\"device\"}": value}"""
        text = urllib.request.urlopen(f"http://{self.http}/metrics", timeout=30).read().decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kernctl(self, *words):
        """What it prints. A connection that the machine refuses now and then (seen under gVisor) is made again: no call
        has been made by then."""
        for left in reversed(range(8)):
            done = subprocess.run([self.programs / "kernctl", "--endpoint", self.grpc, *words], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            if done.returncode == 0:
                return done.stdout
            if left == 0 or "no connection to" not in done.stdout:
                raise SystemExit(f"kernctl {' '.join(words)} ended with code {done.returncode}: {done.stdout}")
            print(f"connecting again: {done.stdout.strip()}", flush=True)
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        code = self.process.wait(timeout=60)
        self.folder.cleanup()
        if code != 0:
            raise SystemExit(f"kernd ended with code {code}; see the log")


@contextlib.contextmanager
def started(programs, arguments, log):
    daemon = Daemon(programs, arguments, log)
    try:
        yield daemon
    except BaseException:
        daemon.process.kill()
        daemon.process.wait()
        raise
    daemon.stop()


def gpu():
    """Name and driver of the first GPU; empty where there is none."""
    try:
        line = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], check=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "", ""
    return tuple(part.strip() for part in line.split(",", 1))


def gpu_memory_mib(pid):
    """Of a process, by the driver; 0 where it does not say (in containers it knows other numbers of processes)."""
    try:
        text = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
                              check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    for line in text.splitlines():
        match = re.match(r"(\d+), *(\d+)", line)
        if match and int(match[1]) == pid:
            return int(match[2])
    return 0
