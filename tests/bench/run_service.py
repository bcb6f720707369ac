#!/usr/bin/env python3
"""kernd beside its peers on this machine, in one run: writes <machine>-service.json, .log and .svg.

usage: run_service.py --machine NAME [OPTION...] [-- KERND FLAG...]
    run_service.py --machine h200 -- --backend cuda
    run_service.py --machine try --quick --out /tmp

What the rows mean: README.md. Takes some eight minutes (--budget); what there was no time for is named. The machine
should have nothing else to do. Exit code: 0; 1 where a call to kernd failed; 2 for bad arguments. What kernd or this
machine does not offer is no failure, and named.
"""

import argparse
import functools
import pathlib
import signal
import statistics
import sys
import time

import daemon
import results_file
from service import measure, plan, plot, report
from service.processes import NotThere, Servers

HERE = pathlib.Path(__file__).resolve().parent
SIZES = "16KiB,128KiB,384KiB,2MiB,6MiB,24MiB,192MiB,1GiB"
QUICK = {"sizes": "16KiB,24MiB", "rounds": 2, "seconds": 0.1, "series_bytes": 256 << 20, "budget": 60.0}
FULL = {"sizes": SIZES, "rounds": 5, "seconds": 0.2, "series_bytes": 4 << 30, "budget": 480.0}
LARGEST_OF_MANY = plan.size("192MiB")  # where there is more than one client
TELLING = 8 << 20  # bytes of a call whose rate is that of bytes
OPEN_SIZES = ("16KiB", "384KiB", "24MiB")
BESIDE = ("16KiB", "1GiB")   # small calls, and the uploads beside them
BESIDE_RATE = 200            # small calls a second
UPLOADS = {"inline": "stock", "striped": "kernd-striped"}


def default_bin():
    """Of the bundle that this is a part of, or of the build folder beside the sources."""
    bundle = HERE.parents[1] / "bin"
    return bundle if bundle.exists() else HERE.parents[1] / "build/bin"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--machine", required=True, help="a short name for this machine, for the files' names")
    add("--bin", type=pathlib.Path, default=default_bin(), help="the folder of kernd and of the programs of the bench")
    add("--out", type=pathlib.Path, default=results_file.RESULTS, help="the folder of the results")
    add("--sizes", help=f"bytes of operands: {SIZES}")
    add("--clients", default="1,8", help="numbers of clients, a process each")
    add("--places", default=",".join(place.name for place in plan.PLACES), help="which rows of kernd")
    add("--extras", default="open,beside,memory", help="open loop, small calls beside uploads, memory; or none")
    add("--rounds", type=int, help="turns over all that are compared")
    add("--seconds", type=float, help="of a block, at most")
    add("--series-bytes", type=int, help="of operands and results, for each line of the table, about")
    add("--budget", type=float, help="seconds after which nothing more is begun")
    add("--quick", action="store_true", help="a minute: few sizes, short blocks, no figures to keep")
    add("--python", default=sys.executable, help="for the Python peer")
    add("--build", default="Release")
    add("--note", default="", help="what to say of the machine behind its CPU")
    add("kernd_flags", nargs="*", metavar="KERND FLAG", help="behind --")
    args = parser.parse_args()
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    known = {place.name: place for place in plan.PLACES}
    try:
        args.sizes = [plan.size(text) for text in args.sizes.split(",")]
        args.clients = [int(text) for text in args.clients.split(",")]
        args.places = [known[name] for name in args.places.split(",")]
    except (ValueError, KeyError) as error:
        parser.error(str(error))
    args.extras = set(args.extras.split(",")) - {"none"}
    if not (args.bin / "service_load").exists():
        parser.error(f"{args.bin} has no service_load: build it, or name another folder with --bin")
    return args


def clients(count):
    return f"{count} client{'s' * (count > 1)}"


class Run:
    """What was measured so far."""

    def __init__(self, args, bench, servers):
        self.args, self.bench, self.servers = args, bench, servers
        self.rows, self.left_out, self.kernd_failed = [], [], False
        self.closed = {}  # (size, clients) -> {Series: Samples}

    def seconds_for(self, moved_bytes):
        """How long kernd would take with a stock client, as far as is known; little takes no time, and small calls, of
        which the bytes are the least part, say nothing of large ones."""
        known = [(size.call_bytes, report.gb_per_s(samples[series]))
                 for (size, count), samples in self.closed.items() for series in samples
                 if count == 1 and series == plan.PLACES[0].kernd and size.call_bytes >= TELLING]
        rate = max(known, default=(0, 0))[1]
        return moved_bytes / rate / 1e9 if rate > 0 and moved_bytes > 1 << 30 else 0

    def _missing(self, what, why, cut_short=False):
        self.kernd_failed |= why.code not in ("", "UNIMPLEMENTED")
        print(f"{what:32}  {'cut short' if cut_short else 'not measured'}: {why}")

    def _keep(self, name, ours, peers):
        self.rows += report.rows_of(name, ours, peers)
        self.kernd_failed |= bool(ours.errors)

    def cell(self, size, count):
        wanted = {series: None for place in self.args.places for series in (place.kernd, *place.peers.values())}
        samples, missing = self.bench.cell(list(wanted), size, count)
        self.closed[size, count] = samples
        print("\n" + report.header(f"{size.name}, {clients(count)}"))
        for place in self.args.places:
            name = f"service/{place.name}/{size.name}/c{count}"
            if place.kernd in missing:
                self._missing(place.name, missing[place.kernd], place.kernd in samples)
            if place.kernd not in samples:
                continue
            ours = samples[place.kernd]
            peers = {report.peer_name(peer, self.servers.tensor_library): series for peer, series in place.peers.items()}
            self._keep(name, ours, {peer: samples[series] for peer, series in peers.items() if series in samples})
            print(report.line(place.name, ours))
            for peer, series in peers.items():
                if series in samples:
                    print(report.line(f"  {peer}", samples[series], ours))
                if series in missing:
                    print(f"  {peer:30}  {'cut short' if series in samples else 'SKIPPED'}: {missing[series]}")
        sys.stdout.flush()

    def open_loop(self, size, count):
        place = next(each for each in plan.PLACES if each.name == plan.OPEN_PLACE)
        pair = (place.kernd, place.peers[plan.OPEN_PEER])
        closed = self.closed.get((size, count), {})
        if any(series not in closed or not closed[series].latency_us for series in pair):
            self.left_out.append(f"open loop of {size.name}, {clients(count)}: there is no closed one")
            return
        rate = plan.OPEN_PART * min(statistics.median(closed[series].calls_per_s) for series in pair)
        samples = self.bench.open_pair(pair, size, count, rate)
        name = f"service/{place.name}/{size.name}/c{count}/open"
        self._keep(name, samples[pair[0]], {plan.OPEN_PEER: samples[pair[1]]})
        self.rows.append(report.row(f"{name}/rate", rate, "calls/s"))
        print("\n" + report.header(f"{size.name}, {clients(count)}, {rate:.1f}/s"))
        print(report.line(place.name, samples[pair[0]]))
        print(report.line(f"  {plan.OPEN_PEER}", samples[pair[1]], samples[pair[0]]), flush=True)

    def beside(self):
        small, upload = map(plan.size, BESIDE)
        seconds = 1.0 if self.args.quick else 5.0
        raw = None
        for place, mode in UPLOADS.items():
            print("\n" + report.header(f"{small.name} beside {upload.name}, {place}"))
            try:
                alone, beside = self.bench.beside("kernd", small, mode, upload, BESIDE_RATE, seconds)
            except NotThere as why:
                self._missing("kernd", why)
                continue
            raw = raw or self.bench.beside("raw", small, "stock", upload, BESIDE_RATE, seconds)
            print(report.line("kernd", beside))
            peers = {"alone": alone, plan.RAW: raw[1]}
            for peer, samples in peers.items():
                print(report.line(f"  {peer}", samples, beside), flush=True)
            self._keep(f"service/beside/{place}/{upload.name}/{small.name}", beside, peers)

    def memory(self):
        size = plan.size(BESIDE[1])
        for place, mode in UPLOADS.items():
            try:
                before, peak = measure.memory_of_a_call(self.args.bin, self.args.kernd_flags, mode, size)
            except NotThere as why:
                self._missing(f"\nmemory at {size.name}, {place}", why)
                continue
            growth = (peak - before) / size.call_bytes
            name = f"service/memory/{place}/{size.name}"
            self.rows.append(report.row(f"{name}/growth", growth, "x payload"))
            self.rows.append(report.row(f"{name}/peak", peak / 2**20, "MiB"))
            print(f"\nmemory of the daemon at {size.name}, {place}: {before >> 20} MiB before, at most {peak >> 20}: "
                  f"growth is {growth:.2f} of operands and result", flush=True)


def steps(args, run):
    """What there is to do, the most telling first: a description, a function, and bytes that move, about."""
    cells = [(size, count) for count in args.clients for size in args.sizes]
    large = [cell for cell in cells if cell[0].rows > LARGEST_OF_MANY.rows]
    lines = len({series for place in args.places for series in (place.kernd, *place.peers.values())})

    def cell(size, count):
        calls = min(args.rounds, run.bench.calls(size, count)) + 2
        return f"{size.name}, {clients(count)}", lambda: run.cell(size, count), lines * calls * count * size.call_bytes

    upload = plan.size(BESIDE[1]).call_bytes
    yield from (cell(*each) for each in cells if each not in large)
    if "open" in args.extras:
        for size, count in [each for each in cells if each[0].name in OPEN_SIZES]:
            open_loop = functools.partial(run.open_loop, size, count)
            yield f"open loop of {size.name}, {clients(count)}", open_loop, 0
    if "beside" in args.extras:
        yield "small calls beside uploads", run.beside, 6 * upload
    if "memory" in args.extras:
        yield "memory of the daemon", run.memory, 4 * upload
    yield from (cell(*each) for each in large if each[1] == 1)


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an end in order: servers are stopped
    started = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"{args.machine}-service"
    with open(f"{stem}.log", "w", encoding="utf-8") as log, Servers(args.bin, args.kernd_flags, args.python) as servers:
        bench = measure.Bench(args.bin, servers, args, started + args.budget, functools.partial(print, file=log))
        run = Run(args, bench, servers)
        for what, step, moved in steps(args, run):
            left = max(0, bench.deadline - time.monotonic())
            needed = run.seconds_for(moved)
            if left <= needed:
                run.left_out.append(f"{what}: {left:.0f} s left, would take some {needed:.0f} (--budget)")
            else:
                step()
    gpu, driver = daemon.gpu()
    out = results_file.write(args.machine, "service", args.build, run.rows, args.note, gpu, driver, args.out)
    why = plot.draw(run.rows, f"{args.machine}: one client, loopback", f"{stem}.svg")
    picture = f"no picture: {why}" if why else f"{stem}.svg"
    print(f"\n{time.monotonic() - started:.0f} s; {out}, {stem}.log, {picture}")
    for text in run.left_out:
        print(f"left out: {text}")
    return 1 if run.kernd_failed else 0


if __name__ == "__main__":
    sys.exit(main())
