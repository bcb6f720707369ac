#!/usr/bin/env python3
"""Runs the fault tests in full size and writes tests/bench/results/<machine>-faults.json.

usage: run_faults.py --bin build/bin --machine NAME
Takes about ten minutes; the machine should have nothing else to do. Exit code: 1 where a test failed.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import results_file

PROGRAMS = ("calls_fault_test", "frames_fault_test", "life_fault_test")
# A property is NAME_UNIT; "per_call" goes with its unit.
UNIT = re.compile(r"(.+)_(s|ms|us|MiB|calls|count|repeats|streams|bytes_per_call)$")
COUNTS = ("calls", "repeats", "streams")


def rows_of(test):
    """The figures of one test: faults/Suite.Name/figure."""
    for key, text in test.items():
        match = UNIT.match(key)
        if match:
            yield {
                "name": f"faults/{test['classname']}.{test['name']}/{key if match[2] in COUNTS else match[1]}",
                "value": round(float(text), 4),
                "unit": match[2].replace("_per_", "/"),
            }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path, help="the folder of the test programs and kernd")
    parser.add_argument("--machine", required=True, help="a short name for this machine, for the file's name")
    parser.add_argument("--build", default="Release")
    parser.add_argument("--note", default="", help="what to say of the machine behind its CPU")
    args = parser.parse_args()

    rows, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for program in PROGRAMS:
            out = pathlib.Path(folder) / f"{program}.json"
            environment = {**os.environ, "KERND_FAULTS": "full"}
            run = subprocess.run([args.bin / program, f"--gtest_output=json:{out}"], env=environment, check=False)
            if run.returncode != 0:
                failed.append(program)
            for suite in json.loads(out.read_text())["testsuites"]:
                for test in suite["testsuite"]:
                    rows.extend(rows_of(test))
    if failed:
        print(f"run_faults: failed: {' '.join(failed)}; nothing written", file=sys.stderr)
        return 1
    print(results_file.write(args.machine, "faults", args.build, rows, args.note))
    return 0


if __name__ == "__main__":
    sys.exit(main())
