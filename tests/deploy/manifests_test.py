#!/usr/bin/env python3
"""What the files of deploy/ promise each other, the Dockerfile and the daemon: ports, users, times, options.

Usage: manifests_test.py BIN    (the folder of kernd)
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError:
    yaml = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/bin")
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PORTS = {int(port) for port in re.search(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[1].split()}


def read(path):
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def effective(variables):
    """The options in force with `variables`: name -> text. Fails on a variable that is no option, or a wrong value."""
    done = run(BIN / "kernd", "--check-config", env={"PATH": os.environ["PATH"], **variables})
    if done.returncode != 0 or "not an option" in done.stdout + done.stderr:
        raise AssertionError(f"{variables}:\n{done.stdout}{done.stderr}")
    return dict(re.findall(r'^([\w-]+) = "?(.*?)"?  #', done.stdout, re.MULTILINE))


def seconds(text):
    """Of one number and one unit."""
    number, unit = re.fullmatch(r"(\d+)(s|m|h|)", text).groups()
    return int(number) * {"": 1, "s": 1, "m": 60, "h": 3600}[unit]


def drain_seconds(variables):
    options = effective(variables)
    return seconds(options["drain-delay"]) + seconds(options["drain-timeout"])


def skip(test, why):
    print(f"SKIPPED: {why}")  # for ./dev, which lists such lines
    test.skipTest(why)


class DockerfileTest(unittest.TestCase):
    def test_bases_are_arguments(self):
        self.assertEqual(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE), ["${BASE}", "${RUNTIME}"])

    def test_its_variables_are_options(self):
        variables = dict(re.findall(r"\b(KERND_\w+)=(\S+)", DOCKERFILE))
        options = effective(variables)
        addresses = [options["listen"].strip('["]'), options["http-listen"]]
        self.assertEqual({int(address.rsplit(":", 1)[1]) for address in addresses}, PORTS)

    def test_presets_exist(self):
        presets = (ROOT / "CMakePresets.json").read_text()
        for preset in re.findall(r"PRESET=([\w-]+)", DOCKERFILE):
            self.assertIn(f'"name": "{preset}"', presets)

    def test_context_holds_what_is_copied_and_built(self):
        kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        folders = set(re.findall(r"^add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE))
        files = {"CMakeLists.txt", "CMakePresets.json", "cmake", "LICENSE", "THIRD_PARTY.md"}
        self.assertLessEqual(folders | files, kept)
        self.assertEqual({path for path in kept if not (ROOT / path).exists()}, set())


class ComposeTest(unittest.TestCase):
    def setUp(self):
        (self.stack,) = read("compose/compose.yaml")
        (self.gpu,) = read("compose/compose.gpu.yaml")
        self.kernd = self.stack["services"]["kernd"]

    def test_ports_are_those_of_the_image_and_on_loopback(self):
        ports = [port.split(":") for service in self.stack["services"].values() for port in service["ports"]]
        self.assertEqual({host for host, _, _ in ports}, {"127.0.0.1"})
        self.assertEqual({int(port.split(":")[2]) for port in self.kernd["ports"]}, PORTS)

    def test_a_drain_has_the_time_that_it_may_take(self):
        for environment in (self.kernd["environment"], self.kernd["environment"] | self.gpu_service()["environment"]):
            self.assertGreater(seconds(self.kernd["stop_grace_period"]), drain_seconds(environment))

    def gpu_service(self):
        return self.gpu["services"]["kernd"]

    def test_gpu_override_builds_for_cuda_and_asks_for_a_gpu(self):
        arguments = self.gpu_service()["build"]["args"]
        known = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
        self.assertLessEqual(set(arguments), known)
        documented = dict(re.findall(r"--build-arg (\w+)=(\S+)", DOCKERFILE.split("\nARG")[0]))
        self.assertEqual(arguments, documented)
        (device,) = self.gpu_service()["deploy"]["resources"]["reservations"]["devices"]
        self.assertEqual((device["driver"], device["capabilities"]), ("nvidia", ["gpu"]))

    def test_mounted_files_are_where_the_programs_look(self):
        targets = {}
        for service in self.stack["services"].values():
            for volume in service.get("volumes", []):
                source, target = volume.split(":")[:2]
                if source.startswith("."):
                    targets[target] = DEPLOY / "compose" / source
                    self.assertTrue(targets[target].is_dir(), source)
                else:
                    self.assertIn(source, self.stack["volumes"])
        self.assertTrue((targets["/etc/prometheus"] / "prometheus.yml").exists())
        (provider,) = read("grafana/provisioning/dashboards/kernd.yaml")[0]["providers"]
        self.assertTrue((targets[provider["options"]["path"]] / "kernd.json").exists())
        (source,) = read("grafana/provisioning/datasources/prometheus.yaml")[0]["datasources"]
        port = re.search(r"(\d+):(\d+)$", self.stack["services"]["prometheus"]["ports"][0])[2]
        self.assertEqual(source["url"], f"http://prometheus:{port}")
        (scraped,) = read("prometheus/prometheus.yml")[0]["scrape_configs"]
        self.assertIn("kernd:9464", scraped["static_configs"][0]["targets"])

    def test_images_are_pinned(self):
        for name in ("prometheus", "grafana"):
            self.assertRegex(self.stack["services"][name]["image"], r":v?\d+\.\d+\.\d+$")

    def test_docker_compose_takes_it(self):
        tool = next((tool for tool in (["docker", "compose"], ["docker-compose"])
                     if shutil.which(tool[0]) and run(*tool, "version").returncode == 0), None)
        if tool is None:
            skip(self, "docker compose is not installed")
        files = ["-f", DEPLOY / "compose/compose.yaml", "-f", DEPLOY / "compose/compose.gpu.yaml"]
        for count in (2, 4):
            done = run(*tool, *files[:count], "config", "--quiet")
            self.assertEqual(done.returncode, 0, done.stderr)


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        self.objects = read("kubernetes/kernd.yaml")
        (self.monitor,) = read("kubernetes/monitoring.yaml")
        (self.gpu,) = read("kubernetes/gpu/kustomization.yaml")
        self.pod = self.find("Deployment")["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]

    def find(self, kind):
        return next(found for found in self.objects if found["kind"] == kind)

    def environment(self, container):
        return {entry["name"]: entry["value"] for entry in container["env"]}

    def test_everything_selects_the_pods(self):
        labels = self.find("Deployment")["spec"]["template"]["metadata"]["labels"]
        for found in self.objects:
            spec = found["spec"]
            selector = spec.get("podSelector") or spec["selector"]
            self.assertEqual(selector.get("matchLabels", selector), labels, found["kind"])

    def test_ports_are_those_of_the_image(self):
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.assertEqual(set(ports.values()), PORTS)
        for service in (found for found in self.objects if found["kind"] == "Service"):
            for port in service["spec"]["ports"]:
                self.assertEqual(port["port"], ports[port["targetPort"]])
        for rule in self.find("NetworkPolicy")["spec"]["ingress"]:
            self.assertIn(rule["ports"][0]["port"], ports)
        for probe in ("startupProbe", "readinessProbe"):
            self.assertEqual(self.container[probe]["grpc"]["port"], ports["grpc"])
        self.assertEqual(self.container["livenessProbe"]["httpGet"], {"path": "/healthz", "port": "metrics"})

    def test_a_drain_has_the_time_that_it_may_take(self):
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], drain_seconds(self.environment(self.container)))
        readiness = self.container["readinessProbe"]
        noticed = readiness["periodSeconds"] * readiness["failureThreshold"]
        delay = seconds(effective(self.environment(self.container))["drain-delay"])
        self.assertGreaterEqual(delay, noticed, "the pod stops before it is known that it is not ready")

    def test_it_has_no_rights(self):
        context = self.container["securityContext"]
        self.assertEqual(context, {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                   "capabilities": {"drop": ["ALL"]}})
        self.assertTrue(self.pod["securityContext"]["runAsNonRoot"])
        user = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
        self.assertGreater(int(user[1]), 0, "runAsNonRoot needs a number that is not 0")

    def test_the_monitor_scrapes_each_pod_once_as_the_job_of_the_rules(self):
        (endpoint,) = self.monitor["spec"]["endpoints"]
        selector = self.monitor["spec"]["selector"]["matchLabels"].items()
        services = [found for found in self.objects if found["kind"] == "Service"
                    and selector <= found["metadata"]["labels"].items()
                    and endpoint["port"] in [port["name"] for port in found["spec"]["ports"]]]
        label = self.monitor["spec"]["jobLabel"]
        self.assertEqual([service["metadata"]["labels"][label] for service in services], ["kernd"])

    def test_the_gpu_patch_fits_the_deployment(self):
        (entry,) = self.gpu["patches"]
        patch = yaml.safe_load(entry["patch"])
        self.assertEqual(patch["metadata"]["name"], self.find("Deployment")["metadata"]["name"])
        (container,) = patch["spec"]["template"]["spec"]["containers"]
        self.assertEqual(container["name"], self.container["name"])
        self.assertEqual(container["resources"]["limits"], {"nvidia.com/gpu": 1})
        self.assertEqual(effective(self.environment(container))["backend"], "cuda")
        repository = self.container["image"].rsplit(":", 1)[0]
        self.assertEqual(self.gpu["images"][0]["name"], repository)

    def test_versions_are_the_projects(self):
        version = re.search(r"project\(kernd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(self.container["image"], f"kernd:{version}")
        self.assertEqual(self.gpu["images"][0]["newTag"], f"{version}-cuda")
        self.assertEqual(re.search(r"^ARG VERSION=(\S+)$", DOCKERFILE, re.MULTILINE)[1], version)


class SystemdTest(unittest.TestCase):
    UNIT = DEPLOY / "systemd/kernd.service"

    def test_a_drain_has_the_time_that_it_may_take(self):
        timeout = re.search(r"^TimeoutStopSec=(\d+)$", self.UNIT.read_text(), re.MULTILINE)[1]
        self.assertGreater(int(timeout), drain_seconds({}))

    def test_systemd_takes_it(self):
        if shutil.which("systemd-analyze") is None:
            skip(self, "systemd-analyze is not installed")
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder) / "kernd.service"
            text = self.UNIT.read_text()
            self.assertIn("ExecStart=/usr/local/bin/kernd\n", text)
            unit.write_text(text.replace("/usr/local/bin/kernd", str(BIN / "kernd")))
            done = run("systemd-analyze", "verify", "--man=no", unit)
            self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    if yaml is None:
        print("SKIPPED: Python has no module yaml")
    else:
        unittest.main(verbosity=2)
