#!/usr/bin/env python3
"""The rules and the dashboard of deploy/, by promtool and against a real Prometheus that scrapes a loaded kernd.

Usage: monitoring_test.py BIN    (the folder of kernd and kernctl)

Prints "SKIPPED: why" where Prometheus is missing.
"""

import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/kernd.rules.yml"
RULES_TEST = RULES.with_name("kernd.rules.test.yml")
CONFIG = RULES.with_name("prometheus.yml")
DASHBOARD = ROOT / "deploy/grafana/dashboards/kernd.json"
BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/bin")

UNITS = {"short", "reqps", "percentunit", "s", "bytes", "Bps"}
COLUMNS = 24
NO_CONNECTION = 2  # exit code of kernctl


def panels():
    return json.loads(DASHBOARD.read_text())["panels"]


def targets():
    return [(panel, target) for panel in panels() for target in panel.get("targets", [])]


def as_prometheus(expr):
    """What Grafana sends for `expr` where all instances are selected."""
    for name, value in (("$__rate_interval", "1m"), ("$job", "kernd"), ("$instance", ".*")):
        expr = expr.replace(name, value)
    return expr


def without_filters(expr):
    """Comparisons give 0 or 1 in place of leaving out: a quiet alert then still answers, if its metrics exist."""
    parts = re.split(r"(\{[^}]*\})", expr)
    parts[::2] = [re.sub(r"(==|!=|<=|>=|<|>)", r"\1 bool", part) for part in parts[::2]]
    return "".join(parts)


class DashboardTest(unittest.TestCase):
    def test_panels_can_be_told_apart(self):
        ids = [panel["id"] for panel in panels()]
        self.assertEqual(len(ids), len(set(ids)))
        for panel in panels():
            if panel["type"] != "row":
                self.assertTrue(panel["title"] and panel["description"], panel)
                names = [target["refId"] for target in panel["targets"]]
                self.assertEqual(len(names), len(set(names)), panel["title"])

    def test_panels_do_not_overlap(self):
        taken = {}
        for panel in panels():
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], COLUMNS, panel["title"])
            for x in range(at["x"], at["x"] + at["w"]):
                for y in range(at["y"], at["y"] + at["h"]):
                    self.assertIsNone(taken.setdefault((x, y), None), f"{panel['title']} lies on {taken.get((x, y))}")
                    taken[x, y] = panel["title"]

    def test_every_panel_asks_the_chosen_source(self):
        variables = {variable["name"]: variable for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]}
        self.assertEqual(variables["datasource"]["type"], "datasource")
        self.assertEqual(variables["datasource"]["query"], "prometheus")
        for panel, target in targets():
            self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"}, panel["title"])
            self.assertEqual(target["datasource"], panel["datasource"], panel["title"])
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            self.assertLessEqual(used, set(variables), panel["title"])
            self.assertIn("job", used, panel["title"])

    def test_units_fit_the_metrics(self):
        for panel, target in targets():
            unit, expr = panel["fieldConfig"]["defaults"]["unit"], target["expr"]
            self.assertIn(unit, UNITS, panel["title"])
            if "seconds" in expr and "process_cpu_seconds_total" not in expr:
                self.assertEqual(unit, "s", panel["title"])
            if "_bytes" in expr and " / " not in expr:
                self.assertEqual(unit, "Bps" if "_bytes_total" in expr else "bytes", panel["title"])

    def test_counters_are_read_as_rates(self):
        for panel, target in targets():
            for metric in re.finditer(r"\b\w+_(?:total|bucket|sum|count)\b(?=\{)", target["expr"]):
                before = target["expr"][: metric.start()]
                self.assertRegex(before, r"\b(rate|increase)\($", f"{panel['title']}: {metric[0]}")


class RulesTest(unittest.TestCase):
    def promtool(self, *arguments):
        done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_promtool_finds_no_fault(self):
        self.promtool("check", "config", CONFIG)
        self.promtool("check", "rules", "--lint-fatal", RULES)
        self.promtool("test", "rules", RULES_TEST)

    def test_every_alert_is_seen_to_fire(self):
        alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
        self.assertGreater(len(alerts), 5)
        fired = set(re.findall(r"alertname: (\w+)\n *exp_alerts:", RULES_TEST.read_text()))
        self.assertEqual(alerts, fired)


class LoadedDaemonTest(unittest.TestCase):
    """One daemon and one Prometheus for all of it: they take their time to start."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kernd-monitoring-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.calls = {"Compute/Matmul": 0, "Compute/Attention": 0}

    def start(self, name, *command):
        log = (self.folder / f"{name}.log").open("w")
        self.addCleanup(log.close)
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def eventually(self, attempt, seconds=90):
        """What `attempt` returns as soon as it is neither None nor an exception."""
        end = time.monotonic() + seconds
        while True:
            try:
                result = attempt()
            except (OSError, AssertionError):
                if time.monotonic() > end:
                    raise
                result = None
            if result is not None:
                return result
            self.assertLess(time.monotonic(), end, f"not within {seconds} s")
            time.sleep(0.1)

    def start_kernd(self):
        ports = self.folder / "ports"
        self.start("kernd", BIN / "kernd", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
                   "--port-file", ports, "--backend", "cpu", "--memory-limit", "4MiB", "--log-calls", "false")
        text = self.eventually(lambda: ports.read_text() if ports.exists() else None)
        self.grpc, self.http = (re.search(rf"^{name}=(.*)$", text, re.MULTILINE)[1] for name in ("grpc", "http"))

    def start_prometheus(self):
        config = CONFIG.read_text()
        for ours, here in (("scrape_interval: 15s", "scrape_interval: 1s"), ("kernd:9464", self.http),
                           ("evaluation_interval: 15s", "evaluation_interval: 1s"), ("kernd.rules.yml", str(RULES))):
            self.assertEqual(config.count(ours), 1, ours)
            config = config.replace(ours, here)
        (self.folder / "prometheus.yml").write_text(config)
        self.start("prometheus", "prometheus", f"--config.file={self.folder / 'prometheus.yml'}",
                   f"--storage.tsdb.path={self.folder / 'tsdb'}", "--web.listen-address=127.0.0.1:0")
        listening = re.compile(r'msg="Listening on" address=(\S+)')
        self.prometheus = self.eventually(lambda: listening.search(self.log("prometheus")))[1]

    def api(self, path, **parameters):
        url = f"http://{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)["data"]

    def values(self, expr):
        """The numbers that `expr` gives now; NaN and infinities are none."""
        samples = self.api("query", query=expr)["result"]
        numbers = [float(sample["value"][1]) for sample in samples]
        return [number for number in numbers if math.isfinite(number)]

    def load(self, stop):
        """Calls of both kinds, some of which are refused, until told to stop."""
        kinds = [("Compute/Matmul", 0, "matmul", "--random", "256x256x256"),
                 ("Compute/Attention", 0, "attention", "--random", "1x4x128x64"),
                 ("Compute/Matmul", 3, "matmul", "--random", "64x64x64", "--kernel", "no_such_kernel"),
                 ("Compute/Matmul", 3, "matmul", "--random", "2048x1024x16")]  # TOO_LARGE: a result of 8 MiB
        lost = 0
        while not stop.is_set():
            for method, code, *arguments in kinds:
                command = [str(BIN / "kernctl"), "--endpoint", self.grpc, *arguments]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                # On a busy machine a connection is not answered now and then (cause unknown); not the subject here.
                if done.returncode == NO_CONNECTION and (lost := lost + 1) < 20:
                    continue
                if done.returncode != code:
                    self.faults.append(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
                    return
                self.calls[method] += 1

    def questions(self):
        rules = [rule for group in self.api("rules")["groups"] for rule in group["rules"]]
        for _, target in targets():
            yield as_prometheus(target["expr"])
        for annotation in json.loads(DASHBOARD.read_text())["annotations"]["list"]:
            yield as_prometheus(annotation["expr"])
        for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                yield as_prometheus(re.fullmatch(r"label_values\((.*), \w+\)", variable["definition"])[1])
        for rule in rules:
            yield rule["name"] if rule["type"] == "recording" else without_filters(rule["query"])

    def test_every_expression_answers(self):
        self.start_kernd()
        self.start_prometheus()
        self.faults, stop = [], threading.Event()
        loader = threading.Thread(target=self.load, args=(stop,))
        loader.start()
        self.addCleanup(loader.join)
        self.addCleanup(stop.set)
        self.eventually(lambda: self.api("rules")["groups"] or None)
        waiting = set(self.questions())
        self.assertGreater(len(waiting), 60)

        def all_answer():
            waiting.difference_update([expr for expr in waiting if self.values(expr)])
            self.assertFalse(self.faults)
            self.assertFalse(waiting, "without data:\n" + "\n".join(sorted(waiting)))
            return True

        self.eventually(all_answer)
        stop.set()
        loader.join()

        for group in self.api("rules")["groups"]:
            for rule in group["rules"]:
                self.assertEqual(rule["health"], "ok", rule)
        # What Prometheus has counted is what was called.
        for method, calls in self.calls.items():
            expr = f'sum(kernd_requests_total{{method="{method}"}})'
            self.eventually(lambda e=expr, c=calls: self.assertEqual(self.values(e), [c], e) or True)
        self.assertEqual(self.values('sum(kernd_rejected_total{reason="TOO_LARGE"})'),
                         self.values('sum(kernd_requests_total{code="RESOURCE_EXHAUSTED"})'))
        firing = [alert["labels"]["alertname"] for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"]
        self.assertEqual(firing, [], "alerts about a daemon that is well")


if __name__ == "__main__":
    lacking = [tool for tool in ("promtool", "prometheus") if shutil.which(tool) is None]
    if lacking:
        print(f"SKIPPED: {lacking[0]} is not installed")
    else:
        unittest.main(verbosity=2)
