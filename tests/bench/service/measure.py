"""Takes the figures: blocks of calls, in turns over all that are compared, so that all meet the same machine."""

import collections
import contextlib
import dataclasses
import math
import pathlib
import time

from service.plan import Series
from service.processes import Clients, Kernd, NotThere

# A client and its server hold the tensors of a call a few times over: message, slices, reply, and what malloc keeps.
COPIES_OF_A_CALL = 8


@dataclasses.dataclass
class Samples:
    """Of all blocks of one series."""

    latency_us: list = dataclasses.field(default_factory=list)
    block_gb_per_s: list = dataclasses.field(default_factory=list)
    calls_per_s: list = dataclasses.field(default_factory=list)
    errors: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    first_error: str = ""
    cut_off: int = 0

    def add(self, results):
        for result in results:
            self.latency_us += result["latency_us"]
            self.errors.update(result["errors"])
            self.first_error = self.first_error or result["first_error"]
            self.cut_off += result["cut_off"]
        seconds = max(result["seconds"] for result in results)
        self.block_gb_per_s.append(sum(result["bytes"] for result in results) / seconds / 1e9)
        done = sum(result["calls"] - sum(result["errors"].values()) for result in results)
        self.calls_per_s.append(done / seconds)

    def quantile(self, q):
        """In microseconds; None where there are too few calls for it to mean anything."""
        ordered = sorted(self.latency_us)
        if len(ordered) < (1 if q <= 0.5 else round(1 / (1 - q))):
            return None
        return ordered[math.ceil(q * len(ordered) - 1e-9) - 1]


def available_memory():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class Bench:
    """Measures with the programs of `bin_folder` and running `servers`, until `deadline` of time.monotonic()."""

    def __init__(self, bin_folder, servers, options, deadline, log):
        self.bin, self.servers, self.options, self.deadline, self.log = bin_folder, servers, options, deadline, log
        self.unimplemented = set()  # series that need not be tried again

    def over(self):
        return time.monotonic() >= self.deadline

    def clients(self, series, size, count):
        if series in self.unimplemented:
            raise NotThere("as before", "UNIMPLEMENTED")
        return Clients(self.bin, series.mode, self.servers.address(series.server), size.rows, count)

    def calls(self, size, count):
        """Of each client, in all rounds together, at most."""
        return max(1, int(self.options.series_bytes / size.call_bytes / count))

    def cell(self, wanted, size, count):
        """One size and number of clients: Samples of each Series, and the NotThere of those without, or cut short."""
        need = count * size.call_bytes * COPIES_OF_A_CALL
        if need > available_memory():
            return {}, {series: NotThere(f"needs some {need >> 30} GiB of memory") for series in wanted}
        together = need * len(wanted) < available_memory() // 2
        samples, missing = {}, {}
        with contextlib.ExitStack() as stack:
            open_clients = {}
            for series in wanted:
                try:
                    if together:
                        open_clients[series] = stack.enter_context(self.clients(series, size, count))
                    samples[series] = Samples()
                except NotThere as why:
                    self._miss(series, why, missing)
            calls = self.calls(size, count)
            rounds = min(self.options.rounds, calls)
            for number in range(rounds):
                if number > 0 and self.over():
                    break
                for series in list(samples):
                    try:
                        with contextlib.nullcontext(open_clients[series]) if together else self.clients(
                                series, size, count) as clients:
                            results = self._block(clients, size, -(-calls // rounds))
                    except NotThere as why:
                        self._miss(series, why, missing)
                        if not samples[series].latency_us:
                            del samples[series]
                        continue
                    samples[series].add(results)
                    self._log_block(series, size, count, number, results)
        return samples, missing

    def _block(self, clients, size, calls):
        if size.call_bytes < 64 << 20:
            clients.closed(1e-9, 1)  # the first call after a pause tells of the pause
        return clients.closed(self.options.seconds, calls)

    def _miss(self, series, why, missing):
        missing[series] = why
        if why.code == "UNIMPLEMENTED":
            self.unimplemented.add(series)

    def _log_block(self, series, size, count, number, results, kind="closed"):
        block = Samples()
        block.add(results)
        ordered = sorted(block.latency_us) or [float("nan")]
        parts = {"min": 0, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99, "max": 1}
        times = " ".join(f"{name} {ordered[int(q * (len(ordered) - 1))]:.1f}" for name, q in parts.items())
        self.log(f"{kind} {series.server}/{series.mode} {size.name} c{count} block {number}: {len(block.latency_us)} "
                 f"calls {block.block_gb_per_s[0]:.3f} GB/s; us {times}; errors {dict(block.errors)} "
                 f"{block.first_error}; cut off {block.cut_off}")

    def open_pair(self, pair, size, count, calls_per_second):
        """Both of the pair under the same load, in turns: Samples of each."""
        samples = {series: Samples() for series in pair}
        with contextlib.ExitStack() as stack:
            clients = {series: stack.enter_context(self.clients(series, size, count)) for series in pair}
            for number in range(self.options.rounds):
                for series in pair:
                    results = clients[series].open(calls_per_second, 2 * self.options.seconds)
                    samples[series].add(results)
                    self._log_block(series, size, count, number, results, f"open at {calls_per_second:.1f}/s")
        return samples

    def beside(self, server, small, upload_mode, upload, calls_per_second, seconds):
        """Small stock calls at a constant rate: Samples of them alone, and of them while another client uploads."""
        series = Series(server, "stock")
        alone, beside = Samples(), Samples()
        with self.clients(series, small, 1) as calls, self.clients(Series(server, upload_mode), upload, 1) as uploads:
            for number in range(2):
                alone.add(calls.open(calls_per_second, seconds))
                start = time.monotonic_ns() + 10_000_000
                uploads.begin([f"closed {start} {int(seconds * 1e9)} 1000000"])
                beside.add(calls.open(calls_per_second, seconds))
                uploaded = uploads.finish()
                self._log_block(Series(server, upload_mode), upload, 1, number, uploaded, "upload")
                if any(result["errors"] for result in uploaded):
                    raise NotThere(f"uploads fail: {uploaded[0]['first_error']}", next(iter(uploaded[0]["errors"])))
        return alone, beside


def memory_of_a_call(bin_folder, kernd_flags, mode, size):
    """Of a fresh daemon that answers one call after the other: resident bytes before, and the most there ever was."""
    kernd = Kernd(bin_folder, kernd_flags)
    try:
        before = kernd.memory("VmRSS")
        with Clients(bin_folder, mode, kernd.tcp, size.rows, 1) as clients:
            clients.closed(60, 1)
            return before, kernd.memory("VmHWM")
    finally:
        kernd.end()
