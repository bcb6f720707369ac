#!/usr/bin/env python3
"""layers.py must notice an arrow that points the wrong way, and leave the right ones alone."""

import pathlib
import tempfile
import unittest

import layers

FORBIDDEN = [
    ("server/core/a.cc", "grpcpp/grpcpp.h"),
    ("server/core/a.h", "kernd/v1/compute.pb.h"),
    ("server/core/a.cc", "google/protobuf/message.h"),
    ("server/core/a.cc", "cuda_runtime.h"),
    ("server/core/a.cc", "httplib.h"),
    ("kernels/src/a.cc", "omp.h"),
    ("server/core/a.cc", "prometheus/counter.h"),
    ("server/core/a.cc", "spdlog/spdlog.h"),
    ("server/core/a.cc", "server/rpc/codec.h"),
    ("server/core/a.cc", "server/cpu/executor.h"),
    ("server/cpu/a.cc", "server/rpc/codec.h"),
    ("server/config/a.cc", "server/core/engine.h"),
    ("server/telemetry/a.cc", "server/core/engine.h"),
    ("server/main.cc", "kernd/v1/compute.pb.h"),
    ("kernels/src/a.cc", "server/core/engine.h"),
    ("kernels/src/a.cc", "kernels/reference/attention.h"),
    ("kernels/src/a.cc", "kernd/client/client.h"),
    ("kernels/reference/a.cc", "kernels/src/matmul.h"),
    ("client/src/a.cc", "server/core/engine.h"),
    ("client/src/a.cc", "kernd/kernels/matmul.h"),
    ("client/src/a.cc", "kernels/reference/matmul.h"),
    ("client/src/a.cc", "client/cli/options.h"),
]

ALLOWED = [
    ("server/rpc/a.cc", "grpcpp/grpcpp.h"),
    ("server/rpc/a.cc", "kernd/v1/compute.grpc.pb.h"),
    ("server/rpc/a.cc", "server/core/engine.h"),
    ("server/core/a.cc", "kernd/kernels/attention.h"),
    ("server/core/a.cc", "server/core/engine.h"),
    ("server/core/a.cc", "vector"),
    ("server/cpu/a.cc", "sched.h"),
    ("server/cpu/a.cc", "omp.h"),
    ("server/telemetry/a.cc", "sys/resource.h"),
    ("server/cpu/a.cc", "server/core/executor.h"),
    ("client/src/a.cc", "grpcpp/grpcpp.h"),
    ("client/cli/a.cc", "kernels/reference/attention.h"),
    ("kernels/src/a.cc", "kernd/kernels/error.h"),
]


class LayersTest(unittest.TestCase):
    def errors(self, path, header):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True)
            file.write_text(f'#pragma once\n#include "{header}"\n', encoding="utf-8")
            found, files = layers.check(pathlib.Path(folder))
            self.assertEqual(files, 1)
            return found

    def test_forbidden(self):
        for path, header in FORBIDDEN:
            with self.subTest(path=path, header=header):
                self.assertEqual(len(self.errors(path, header)), 1)

    def test_allowed(self):
        for path, header in ALLOWED:
            with self.subTest(path=path, header=header):
                self.assertEqual(self.errors(path, header), [])

    def test_folder_without_a_row(self):
        self.assertIn("no layer", self.errors("server/utils/a.h", "vector")[0])


if __name__ == "__main__":
    unittest.main()
