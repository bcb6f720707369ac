#!/usr/bin/env python3
"""Tests of deploy/bundle/run-gpu-tests.sh, in a bundle whose programs are made up."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "deploy/bundle"

KERND = """
[[ $1 != --version ]] || { echo "kernd 0.0.0"; exit; }
[[ $2 == cpu ]] || { echo "no GPU: made up" >&2; exit 4; }
trap 'exit 0' TERM
while [[ $1 != --port-file ]]; do shift; done
echo grpc=127.0.0.1:1 >"$2"
while true; do sleep 0.01; done
"""

# As GoogleTest writes it: two cases passed, one failed, one skipped.
REPORT = """cat >"${{GTEST_OUTPUT#json:}}" <<END
{{
  "tests": {tests},
  "failures": {failures},
  "disabled": 0,
  "errors": 0,
  "testsuites": [
    {{
      "tests": {tests},
      "failures": {failures},
      "testsuite": [
        {{
          "result": "{result}",
        }}
END
echo "made_up_test.cc:1: Skipped"
echo "there is no moon"
echo "[  SKIPPED ] Made.Up (0 ms)"
exit {code}
"""


def report(tests, failures=0, result="COMPLETED", code=0):
    return REPORT.format(tests=tests, failures=failures, result=result, code=code)


class RunGpuTests(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.bundle = pathlib.Path(temporary.name)
        (self.bundle / "tests").mkdir()
        (self.bundle / "bin").mkdir()
        for script in ("run-gpu-tests.sh", "env.sh"):
            shutil.copy(SOURCE / script, self.bundle)
        self.program("kernd", KERND)
        self.program("kernctl", "exit 0")
        self.tests = []

    def program(self, name, text):
        path = self.bundle / "bin" / name
        path.write_text("#!/usr/bin/env bash\n" + text)
        path.chmod(0o755)

    def add_test(self, name, text, label="unit", limit=60, variables=""):
        self.program(name, text)
        self.tests.append(" ".join(f"{name} {label} {limit} {variables} {name}".split()))

    def run_it(self, *options):
        """Exit code and lines."""
        (self.bundle / "tests/list.txt").write_text("\n".join(self.tests) + "\n")
        command = [self.bundle / "run-gpu-tests.sh", "--out", self.bundle / "logs", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.returncode, done.stdout.splitlines()

    def test_counts_cases_and_names_what_was_skipped(self):
        self.add_test("good_test", report(3))
        self.add_test("skipping_test", report(4, result="SKIPPED"))
        code, lines = self.run_it()
        self.assertEqual((code, lines[-1]), (0, "7 passed, 0 failed, 2 skipped"))  # a smoke test of each kind
        self.assertIn("    SKIPPED Made.Up: there is no moon", lines)
        self.assertIn("    SKIPPED smoke@cuda, and the integration tests on cuda: no GPU: made up", lines)

    def test_failed_cases_crashes_and_hangs_fail(self):
        for text, remark in ((report(3, failures=1, code=1), "1 failed"), ("kill -SEGV $$", "ended with code 139"),
                             ("sleep 60", "stopped after 1 s"), (report(2, code=7), "ended with code 7")):
            with self.subTest(remark):
                self.tests = []
                self.add_test("good_test", report(3))
                self.add_test("bad_test", text, limit=1)
                code, lines = self.run_it()
                self.assertEqual(code, 1)
                self.assertRegex(lines[-1], "passed, 1 failed, 1 skipped$")
                self.assertTrue(any(line.startswith("FAILED   bad_test ") and remark in line for line in lines), lines)

    def test_a_failure_shows_the_end_of_its_log(self):
        self.add_test("bad_test", "seq 100; exit 1")
        _, lines = self.run_it()
        self.assertIn("    | 100", lines)
        self.assertNotIn("    | 70", lines)
        self.assertIn("100", (self.bundle / "logs/bad_test.log").read_text().split())

    def test_integration_tests_run_on_each_backend_that_is_there(self):
        self.add_test("daemon_test", '[[ $KERND_TEST_BACKEND == cpu && $EXTRA == 1 ]] || exit 1\n' + report(1),
                  label="integration", variables="EXTRA=1")
        code, lines = self.run_it()
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 1 skipped"))
        _, lines = self.run_it("--list")
        self.assertEqual(lines, ["daemon_test@cpu", "daemon_test@cuda"])
        _, lines = self.run_it("--list", "--quick")
        self.assertEqual(lines, [])

    def test_a_backend_that_is_asked_for_must_be_there(self):
        self.add_test("good_test", report(1))
        code, lines = self.run_it("--backend", "cuda")
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_a_gpu_that_is_there_must_work(self):
        self.program("nvidia-smi", "echo Made Up 9000, 1.2")
        self.program("compute-sanitizer", "exit 1")
        # In four parts, each another one.
        self.add_test("device_test", '[[ $GTEST_TOTAL_SHARDS == 4 ]] && [[ $GTEST_SHARD_INDEX == [0-3] ]] || exit 1\n' +
                      report(1), label="gpu")
        code, lines = self.run_it()
        self.assertEqual((code, lines[-1]), (1, "5 passed, 1 failed, 0 skipped"), lines)
        for part in range(1, 5):
            self.assertTrue(any(line.startswith(f"PASSED   device_test.{part}of4") for line in lines), lines)
        code, lines = self.run_it("--backend", "cpu")
        self.assertEqual((code, lines[-1]), (0, "1 passed, 0 failed, 0 skipped"))
        self.program("kernd", KERND.replace("kernd 0.0.0", "kernd 0.0.0 (CUDA none)"))
        code, lines = self.run_it()
        self.assertEqual((code, lines[-1]), (0, "5 passed, 0 failed, 1 skipped"))

    def test_small_gpu_cases_run_under_the_sanitizer(self):
        self.program("nvidia-smi", "echo Made Up 9000, 1.2")
        self.program("kernd", KERND.replace("kernd 0.0.0", "kernd 0.0.0 (CUDA none)"))
        self.add_test("matmul_gpu_test", report(2), label="gpu")
        self.add_test("other_gpu_test", report(2), label="gpu")
        code, lines = self.run_it("--filter", "sanit|check")
        if not any("compute-sanitizer" in line for line in lines):
            self.skipTest("this machine has a compute-sanitizer of its own")
        self.assertIn("    SKIPPED memcheck, racecheck, synccheck, initcheck: there is no compute-sanitizer here", lines)
        # Under a tool that finds something in one of its four forms.
        self.program("compute-sanitizer", '[[ $GTEST_FILTER == *EmptyResults* ]] || exit 9\n"${!#}"\n[[ $2 != racecheck ]] || exit 99')
        code, lines = self.run_it("--filter", "check@")
        self.assertEqual((code, lines[-1]), (1, "9 passed, 1 failed, 1 skipped"), lines)
        self.assertTrue(any(line.startswith("FAILED   racecheck@matmul_gpu_test") for line in lines), lines)
        _, lines = self.run_it("--list", "--quick")
        self.assertEqual(lines, [])

    def test_the_filter_chooses(self):
        self.add_test("good_test", report(1))
        self.add_test("bad_test", "exit 1")
        code, lines = self.run_it("--filter", "^good")
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 1 skipped"))

    def test_a_wrong_answer_of_the_daemon_fails(self):
        self.program("kernctl", "[[ $3 != attention ]]")
        code, lines = self.run_it()
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 1 skipped"))

    def test_bad_arguments(self):
        for options in (["--nonsense"], ["--backend", "tpu"], ["--jobs", "0"], ["--filter"]):
            code, lines = self.run_it(*options)
            self.assertEqual((code, len(lines)), (2, 1), lines)


if __name__ == "__main__":
    unittest.main()
