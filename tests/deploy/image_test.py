#!/usr/bin/env python3
"""Builds the image with buildah over a debootstrapped base, and runs it as an OCI runtime would.

Usage: image_test.py WORK    (as root; WORK keeps the base and all layers, some GB, so that the next run is quick)

Needs buildah, runc and debootstrap, and a network for apt-get. Prints "SKIPPED: why" where one of them is missing. The
base images that the Dockerfile names are not pulled: a Debian 12 made here stands in for both.
"""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/image").resolve()
BASE, IMAGE = "localhost/kernd-base", "localhost/kernd"
MIB = 2**20


def run(*command, check=True, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if check and done.returncode != 0:
        words = " ".join(map(str, command))
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def buildah(*arguments, **options):
    driver = "overlay" if "overlay" in pathlib.Path("/proc/filesystems").read_text() else "vfs"
    # TMPDIR also holds what --mount=type=cache keeps.
    environment = {**os.environ, "TMPDIR": str(WORK / "tmp")}
    return run("buildah", "--storage-driver", driver, "--root", WORK / "storage", "--runroot", WORK / "run", *arguments,
               env=environment, **options)


def make_base():
    """A minimal Debian 12 that reaches the network as this machine does."""
    if buildah("inspect", "--type", "image", BASE, check=False).returncode == 0:
        return
    root = WORK / "base"
    shutil.rmtree(root, ignore_errors=True)
    mirror = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Codename: bookworm").stdout.split("\n")[0]
    run("debootstrap", "--variant=minbase", "bookworm", root, mirror)
    acquire = [line for line in run("apt-config", "dump").stdout.splitlines() if line.startswith("Acquire::")]
    (root / "etc/apt/apt.conf.d/99host").write_text("\n".join(acquire) + "\n")
    certificates = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
        shutil.copy(certificates, root / "etc/ssl/certs")
    run("tar", "-C", root, "-cf", WORK / "base.tar", ".")
    (WORK / "Dockerfile.base").write_text("FROM scratch\nADD base.tar /\n")
    buildah("bud", "--isolation", "chroot", "-t", BASE, "-f", WORK / "Dockerfile.base", WORK)
    shutil.rmtree(root)
    (WORK / "base.tar").unlink()


def build(*arguments, check=True):
    """With Docker's format: OCI's has no HEALTHCHECK. With layers, so that the next run installs nothing anew."""
    return buildah("bud", "--isolation", "chroot", "--format", "docker", "--layers", "--build-arg", f"BASE={BASE}",
                   "--build-arg", f"RUNTIME={BASE}", *arguments, "-f", ROOT / "Dockerfile", ROOT, check=check)


class Container:
    """A running container of the image: read-only root, no capabilities, no privileges, a network of its own."""

    def __init__(self, rootfs, image, user="10001:10001", arguments=()):
        self.name = f"kernd-image-test-{os.getpid()}-{user.replace(':', '-')}"
        uid, gid = map(int, user.split(":"))
        self.environment = image["Env"]
        process = {"args": [*image["Entrypoint"], *(image.get("Cmd") or []), *arguments], "env": image["Env"],
                   "cwd": image.get("WorkingDir") or "/", "user": {"uid": uid, "gid": gid},
                   "noNewPrivileges": True, "capabilities": {}}
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
                  {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev"]}]
        spaces = [{"type": space} for space in ("pid", "network", "ipc", "uts", "mount")]
        bundle = WORK / "bundle"
        bundle.mkdir(exist_ok=True)
        (bundle / "config.json").write_text(json.dumps({
            "ociVersion": "1.0.2", "process": process, "root": {"path": str(rootfs), "readonly": True},
            "hostname": "kernd", "mounts": mounts, "linux": {"namespaces": spaces}}))
        self.log = (WORK / "container.log").open("w+")
        self.process = subprocess.Popen(["runc", "run", "--bundle", bundle, self.name],
                                        stdout=self.log, stderr=self.log)

    def text(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def inside(self, *command):
        """Output and exit code of a program inside, started as HEALTHCHECK and `docker exec` do."""
        done = run("runc", "exec", self.name, *command, check=False)
        return done.stdout + done.stderr, done.returncode

    def pid(self):
        state = run("runc", "state", self.name)
        return json.loads(state.stdout)["pid"]

    def beside(self, *command):
        """`command` as a program that shares nothing but the network with the container."""
        return ["nsenter", "--net", "--target", str(self.pid()), *command]

    def get(self, path):
        """The body of a page of port 9464."""
        script = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:9464{path}').read().decode())"
        return run(*self.beside(sys.executable, "-c", script), check=False).stdout

    def wait_for(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            if (code := self.process.poll()) is not None:
                raise AssertionError(f"{what}: the container has ended with code {code}:\n{self.text()}")
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds} s; kernd wrote:\n{self.text()}")
            time.sleep(0.05)

    def close(self):
        subprocess.run(["runc", "delete", "--force", self.name], stderr=subprocess.DEVNULL,
                       check=False)
        self.process.wait()
        self.log.close()


class ImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        (WORK / "tmp").mkdir(parents=True, exist_ok=True)
        make_base()
        build("--build-arg", "REVISION=abc123", "-t", IMAGE)
        cls.image = json.loads(buildah("inspect", "--type", "image", IMAGE).stdout)["Docker"]["config"]
        cls.rootfs = cls.mounted(IMAGE)

    @classmethod
    def mounted(cls, image):
        """The root of a container of `image`, until the end of all tests."""
        holder = buildah("from", "--pull-never", image).stdout.strip()
        cls.addClassCleanup(buildah, "rm", holder)
        return pathlib.Path(buildah("mount", holder).stdout.strip())

    def launch(self, rootfs=None, **options):
        container = Container(rootfs or self.rootfs, self.image, **options)
        self.addCleanup(container.close)
        return container

    def healthy(self, container):
        test = self.image["Healthcheck"]["Test"]
        self.assertEqual(test[0], "CMD")
        container.wait_for(lambda: container.inside(*test[1:])[1] == 0, "HEALTHCHECK")

    def test_says_how_to_run_it(self):
        self.assertEqual(self.image["User"], "10001:10001")
        self.assertEqual(self.image["Entrypoint"], ["/usr/local/bin/kernd"])
        self.assertFalse(self.image.get("Cmd"), "arguments after the image's name would replace it")
        self.assertEqual(self.image["StopSignal"], "SIGTERM")
        self.assertEqual(sorted(self.image["ExposedPorts"]), ["50051/tcp", "9464/tcp"])
        self.assertFalse(self.image.get("Volumes"))
        labels = {name.rsplit(".", 1)[1]: value for name, value in self.image["Labels"].items()
                  if name.startswith("org.opencontainers.image.")}
        version = re.search(r"project\(kernd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual((labels["title"], labels["version"], labels["revision"], labels["licenses"]),
                         ("kernd", version, "abc123", "Apache-2.0"))

    def test_holds_what_it_needs_and_no_more(self):
        for name in ("kernd", "kernctl"):
            info = (self.rootfs / "usr/local/bin" / name).stat()
            self.assertEqual((info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)), (0, 0, 0o755), name)
        for path in self.rootfs.rglob("*"):
            info = path.lstat()
            if stat.S_ISREG(info.st_mode) or (stat.S_ISDIR(info.st_mode) and not info.st_mode & stat.S_ISVTX):
                self.assertFalse(info.st_mode & stat.S_IWOTH, f"{path} may be written by everybody")
        for tool in ("gcc", "g++", "cmake", "cc1plus"):
            self.assertFalse((self.rootfs / "usr/bin" / tool).exists(), tool)
        self.assertFalse(any((self.rootfs / "var/lib/apt/lists").glob("*")), "lists of apt-get")
        size, base = (buildah_size(name) for name in (IMAGE, BASE))
        print(f"image: {size / MIB:.0f} MiB, of which the base has {base / MIB:.0f}")
        # oneDNN 38, gRPC 17, OpenSSL 6, libstdc++, protobuf, and the two programs.
        self.assertLess(size - base, 112 * MIB)

    def test_serves_as_anybody_on_a_root_that_nobody_can_write(self):
        for user in ("10001:10001", "54321:0"):
            with self.subTest(user=user):
                container = self.launch(user=user)
                self.healthy(container)
                status = pathlib.Path(f"/proc/{container.pid()}/status").read_text()
                self.assertRegex(status, rf"Uid:\t{user.split(':')[0]}\t")
                self.assertRegex(status, r"NSpid:\t\d+\t1\n")
                text, code = container.inside("/usr/local/bin/kernctl", "attention", "--random", "1x4x64x32")
                self.assertEqual(code, 0, text)
                self.assertIn('revision="abc123"', container.get("/metrics"))
                self.assertEqual(container.get("/readyz").strip(), "ready")
                container.close()

    def test_sigterm_ends_it_after_the_call_in_flight(self):
        container = self.launch()
        self.healthy(container)
        # Seconds of work, for a client outside: whatever is inside ends with kernd, which is process 1.
        command = container.beside("chroot", str(self.rootfs), "/usr/local/bin/kernctl", "matmul", "--dtype", "F64",
                                   "--random", "4096x4096x4096")
        call = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        container.wait_for(lambda: "\nkernd_requests_in_flight 1\n" in container.get("/metrics"), "a call in flight")
        run("runc", "kill", container.name, "TERM")
        text = call.communicate()[0]
        self.assertEqual(call.returncode, 0, text)
        self.assertEqual(container.process.wait(), 0, container.text())

    def test_arguments_after_its_name_are_options(self):
        container = self.launch(arguments=("--memory-limit", "none"))
        self.assertEqual(container.process.wait(), 2, container.text())
        self.assertIn("--memory-limit", container.text())

    def test_the_preset_for_cuda_needs_a_base_with_cuda(self):
        done = build("--build-arg", "PRESET=all-gpus", "-t", "localhost/kernd-cuda", check=False)
        self.assertNotEqual(done.returncode, 0, "a CUDA image without CUDA")
        self.assertIn("CUDAToolkit", done.stdout + done.stderr)

    def test_cuda_is_in_it_where_the_base_has_a_toolkit(self):
        toolkit = pathlib.Path("/usr/local/cuda").resolve()
        if not (toolkit / "bin/nvcc").exists():
            self.skipTest("there is no CUDA toolkit in /usr/local/cuda")
        volume = f"{toolkit}:/usr/local/cuda:ro"
        build("--build-arg", "PRESET=default", "--volume", volume, "-t", "localhost/kernd-cuda")
        rootfs = self.mounted("localhost/kernd-cuda")
        self.assertTrue(list((rootfs / "usr/local/lib").glob("libcublasLt.so.*")))
        container = self.launch(rootfs)
        self.healthy(container)  # here without a driver, so on the CPU
        self.assertRegex(container.inside("/usr/local/bin/kernd", "--version")[0], r"CUDA \d+\.\d+")
        self.assertIn("libcublasLt", container.inside("/sbin/ldconfig", "-p")[0])


def buildah_size(name):
    images = json.loads(buildah("images", "--json", name).stdout)
    value, unit = images[0]["size"].split()
    return float(value) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def missing():
    if os.geteuid() != 0:
        return "it must run as root"
    for tool in ("buildah", "runc", "debootstrap", "nsenter"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return None


if __name__ == "__main__":
    if why := missing():
        print(f"SKIPPED: {why}")
    else:
        unittest.main(verbosity=2)
