#!/usr/bin/env python3
"""Checks that every #include obeys the layers of the project. Usage: layers.py [ROOT]

The rules are the tables below. A folder may include its own headers, the C and C++ standard library, and what its row
names; the most specific row decides. Exit code: 0 when all is well, 1 with one line for each forbidden include.
"""

import pathlib
import re
import sys

KERNELS = "kernd/kernels/"
CLIENT = "kernd/client"
CORE = "server/core/"
OBSERVED = ("server/core/call_record.h", "server/core/finding.h", "server/core/stage.h", "kernd/kernels/error.h")
PROTO = ("kernd/v1/", "kernd/wire/", "grpc/", "grpcpp/", "google/")  # generated messages, gRPC, protobuf
TEST = ("gtest/", "gmock/", "tests/", "proto/", "kernels/", "server/", "client/", "kernd/", "grpc", "google/")
TOOLS = ("absl/", "nlohmann/")

# Folder -> prefixes of what it may include beside itself and the standard library.
ALLOWED = {
    "proto": (*PROTO, "absl/"),
    "kernels": (KERNELS, "absl/", "cuda", "cublas", "cute/", "mma.h"),
    "kernels/reference": (KERNELS, "absl/"),
    "server/main.cc": ("server/", KERNELS, "absl/", "CLI/", "spdlog/"),
    "server/app": ("server/config/", CORE, "server/rpc/", "server/telemetry/", "server/tune/", KERNELS, "absl/", "spdlog/"),
    "server/app/select_backend.cc": ("server/app/", "server/config/", CORE, "server/cpu/", "server/gpu/", "server/tune/", KERNELS, "absl/"),
    "server/config": ("absl/", "CLI/"),
    "server/core": (KERNELS, "absl/"),
    "server/cpu": (CORE, KERNELS, "absl/", "oneapi/", "dnnl", "omp.h"),
    "server/gpu": (CORE, KERNELS, "kernels/gpu/cuda.h", "absl/", "cuda", "cublas", "nvml"),
    "server/rpc": (CORE, "server/config/", "server/telemetry/", "server/tune/", KERNELS, *PROTO, "absl/"),
    "server/telemetry": (*OBSERVED, "absl/", "spdlog/", "prometheus/", "nlohmann/"),
    "server/tune": (CORE, KERNELS, "kernels/reference/", "absl/", "omp.h"),
    "client": (CLIENT, *PROTO, "absl/"),
    "client/cli": (CLIENT, *PROTO, *TOOLS, "CLI/", KERNELS, "kernels/reference/"),
    "client/examples": (CLIENT, *PROTO, "absl/"),
    "tests": (*TEST, *TOOLS, "CLI/", "httplib.h", "prometheus/", "cuda", "spdlog/"),
}

# What every folder may include: the generated version.
GENERATED = ("kernd/version.h",)

# The standard library and the operating system: every header without a folder, but for these packages'.
SYSTEM = re.compile(r"(?!httplib|dnnl|cuda|cublas|nvml|mma|omp)\w+(\.h)?|(sys|netinet|arpa|linux|net)/\w+\.h")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")')


def rule_of(path):
    """The most specific row for a file, or None."""
    parts = path.parts
    for n in range(len(parts), 0, -1):
        row = "/".join(parts[:n])
        if row in ALLOWED:
            return row
    return None


def may_include(row, header):
    if rule_of(pathlib.PurePath(header)) == row or header in GENERATED or header.startswith(ALLOWED[row]):
        return True
    return bool(SYSTEM.fullmatch(header))


def check(root):
    """Returns a line for each forbidden include, and the number of files seen."""
    errors, files = [], 0
    for top in ("proto", "kernels", "server", "client", "tests"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
                continue
            relative = path.relative_to(root)
            row = rule_of(relative)
            files += 1
            if row is None:
                errors.append(f"{relative}: no layer has this folder; add it to tests/lint/layers.py")
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                header = match.group(1) or match.group(2)
                if not may_include(row, header):
                    errors.append(f"{relative}:{number}: {row} may not include {header}")
    return errors, files


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]).resolve()
    errors, files = check(root)
    for error in errors:
        print(error, file=sys.stderr)
    if files == 0:
        print(f"no source under {root}", file=sys.stderr)
    return 1 if errors or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
