"""Rows for the results file, and the table for people."""

import statistics

from service.plan import PYTHON

QUANTILES = {"": 0.5, "/p90": 0.9, "/p99": 0.99}


def short(value):
    return float(f"{value:.5g}")


def row(name, value, unit, peer=None, peer_value=None, more_is_better=False):
    out = {"name": name, "value": short(value), "unit": unit}
    if peer:
        ratio = value / peer_value if more_is_better else peer_value / value
        out |= {"peer": peer, "peer_value": short(peer_value), "ratio": short(ratio)}
    return out


def gb_per_s(samples):
    return statistics.median(samples.block_gb_per_s)


def rows_of(name, ours, peers):
    """Median, p90, p99 and throughput of Samples beside those of each peer; a row without one where there are none."""
    for suffix, q in QUANTILES.items():
        value = ours.quantile(q)
        others = {peer: samples.quantile(q) for peer, samples in peers.items()}
        others = {peer: other for peer, other in others.items() if other is not None}
        if value is not None:
            for peer, other in (others or {None: None}).items():
                yield row(name + suffix, value / 1e3, "ms", peer, other and other / 1e3)
    rates = {peer: gb_per_s(samples) for peer, samples in peers.items() if gb_per_s(samples) > 0}
    if gb_per_s(ours) > 0:
        for peer, rate in (rates or {None: None}).items():
            yield row(f"{name}/throughput", gb_per_s(ours), "GB/s", peer, rate, more_is_better=True)
    failed = sum(ours.errors.values())
    if failed or ours.cut_off:
        yield row(f"{name}/failed", failed + ours.cut_off, "calls")


def peer_name(peer, library):
    """The Python peer is named after its library: grpcio-torch, grpcio-numpy."""
    return f"grpcio-{'torch' if library.startswith('torch') else library}" if peer == PYTHON and library else peer


def header(what):
    """Over lines."""
    words = {"p50 ms": 10, "p90": 10, "p99": 10, "GB/s": 8, "calls": 8, "failed": 8, "p50 ratio": 11, "GB/s ratio": 11}
    return f"{what:32}" + "".join(f"{word:>{width}}" for word, width in words.items())


def number(value, width, digits=3):
    return f"{'-' if value is None else format(value, f'.{digits}f'):>{width}}"


def line(name, samples, ours=None):
    """One of the table; with `ours`, the ratios of ours to these."""
    cells = [number(None if value is None else value / 1e3, 10) for value in map(samples.quantile, (0.5, 0.9, 0.99))]
    failed = sum(samples.errors.values()) + samples.cut_off
    text = f"{name:32}{''.join(cells)}{number(gb_per_s(samples), 8, 2)}{len(samples.latency_us):>8}{failed:>8}"
    if ours is not None and ours.latency_us and samples.latency_us:
        faster = samples.quantile(0.5) / ours.quantile(0.5)
        more = gb_per_s(ours) / gb_per_s(samples) if gb_per_s(samples) else None
        text += number(faster, 11, 2) + number(more, 11, 2)
    if samples.errors:
        text += f"  {dict(samples.errors)} {samples.first_error}"
    return text
