#!/usr/bin/env python3
"""Runs service_small_bench and writes tests/bench/results/<machine>-service-small.json.

usage: run_service_small.py --bench build/bin/service_small_bench --machine NAME
Takes two minutes; the machine should have nothing else to do.
"""

import argparse
import json
import subprocess

import results_file


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the service_small_bench program")
    parser.add_argument("--machine", required=True, help="a short name for this machine, for the file's name")
    parser.add_argument("--build", default="Release")
    args = parser.parse_args()

    run = subprocess.run([args.bench], check=True, stdout=subprocess.PIPE, text=True)
    results = json.loads(run.stdout)["results"]
    results_file.write(args.machine, "service-small", args.build, results)
    for row in results:
        peer = f"  {row['peer']} {row['peer_value']:.1f}, ratio {row['ratio']:.2f}" if "peer" in row else ""
        print(f"{row['name']:40} {row['value']:10.2f} {row['unit']}{peer}")


if __name__ == "__main__":
    main()
