"""Latency over size as a picture: SVG, by matplotlib where it is."""

import re

from service.plan import UNITS

KERND = {"inline": "tab:blue", "inline-client": "tab:cyan", "striped": "tab:green", "shm": "tab:red",
         "auto": "tab:olive"}
PEERS = ("tab:orange", "tab:brown", "tab:purple", "tab:gray", "black", "silver")
ROW = re.compile(r"service/([\w-]+)/(\d+)(KiB|MiB|GiB)/c1")


def curves(results):
    """Name to {bytes: ms}, of one client's medians: kernd's places, then the peers."""
    ours, peers = {}, {}
    for row in results:
        match = ROW.fullmatch(row["name"])
        if match and match[1] in KERND:
            size = int(match[2]) * UNITS[match[3]]
            ours.setdefault(f"kernd, {match[1]}", {})[size] = row["value"]
            if "peer" in row:
                peers.setdefault(row["peer"], {}).setdefault(size, row["peer_value"])
    return ours, peers


def draw(results, title, out):
    """Why there is no picture; empty where there is one, at `out`."""
    try:
        import matplotlib
    except ImportError:
        return "matplotlib is not installed"
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "kernd"  # equal figures, equal bytes
    from matplotlib import pyplot

    ours, peers = curves(results)
    if not ours:
        return "nothing was measured with one client"
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for name, points in ours.items():
        axes.plot(*zip(*sorted(points.items())), "o-", lw=2, label=name, color=KERND[name.split(", ")[1]])
    for color, (name, points) in zip(PEERS, peers.items()):
        axes.plot(*zip(*sorted(points.items())), "s--", lw=1, ms=3, label=name, color=color)
    sizes = sorted({size for points in ours.values() for size in points})
    axes.set(xscale="log", yscale="log", title=title, xlabel="operands; the result is a third of them",
             ylabel="median latency of a call, ms")
    axes.set_xticks(sizes, [next(f"{size // unit} {name}" for name, unit in reversed(UNITS.items()) if size >= unit)
                            for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})
    return ""
