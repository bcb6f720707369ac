"""Where the benches keep their figures: tests/bench/results/<machine>-<suite>.json, the newest run in place of the last."""

import datetime
import json
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def write(machine, suite, build, results, note="", gpu="", driver="", folder=RESULTS):
    """Writes `results`, rows of {name, value, unit, peer, peer_value, ratio}; gives the file's path."""
    facts = {"gpu": gpu, "driver": driver, "cpu": cpu_model() + note, "date": str(datetime.date.today()), "build": build}
    out = folder / f"{machine}-{suite}.json"
    folder.mkdir(exist_ok=True)  # a bundle carries none
    out.write_text(json.dumps({"machine": facts, "results": results}, indent=1) + "\n")
    return out
