#!/usr/bin/env python3
"""Packs a finished build into one file that runs on a machine that has nothing of what it was built with.

usage: make_bundle.py --build FOLDER [--out bundle.tar.xz]      without --out: checks only

Inside is kernd-bundle/: bin/ (every program of the build, stripped), lib/ (the shared libraries that they need, but for
glibc's and CUDA's), share/ (the messages, for a bench), tests/ (test data, bench scripts, and CTest's list of the test
programs as list.txt), run-gpu-tests.sh and env.sh. Equal builds give equal bytes. Before it is packed it is checked: see
check(). Exit code: 0 when all is well, 1 with one line for each fault.
"""

import argparse
import io
import json
import lzma
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAME = "kernd-bundle"
LIMIT_MIB = 45
RPATH = "$ORIGIN/../lib"  # as cmake/KerndTargets.cmake sets it

# Of the target's own: glibc, which no program can bring along, the GPU driver and CUDA's toolkit.
GLIBC = re.compile(r"(ld-linux.*|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl)\.so\.\d+|linux-vdso\.so\.1")
DRIVER = re.compile(r"lib(cuda|nvidia-.*)\.so.*")
CUDA = re.compile(r"lib(cudart|cublas|cublasLt|cudnn|nvrtc|nvJitLink|nccl|cupti|cufft|curand|cusolver|cusparse)[^.]*\.so.*")
NOT_RUN = {"bench", "fuzz-long"}  # labels that ./dev test leaves out too


class Fault(Exception):
    pass


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Elf:
    """What the loader will want of a program or library."""

    def __init__(self, path):
        self.name = path.name
        self.needed, self.rpath, self.runpath = [], [], []
        for line in output("readelf", "-dW", path).splitlines():
            match = re.search(r"\((NEEDED|RPATH|RUNPATH)\).*\[(.*)\]", line)
            if match:
                into = {"NEEDED": self.needed, "RPATH": self.rpath, "RUNPATH": self.runpath}[match[1]]
                into += match[2].split(":")
        versions = re.findall(r"Name: GLIBC_(\d+(?:\.\d+)+)", output("readelf", "-VW", path))
        self.glibc = max((tuple(map(int, version.split("."))) for version in versions), default=())


def cut_rpath(path):
    """Leaves RPATH alone in the list of folders of what was built here: CMake adds those of the build machine's libraries, and an empty
    entry (the working directory!) to what it may have to change at installation."""
    entries = Elf(path).rpath
    if entries[:1] == [RPATH] and len(entries) > 1:
        old = ":".join(entries).encode() + b"\0"
        content = path.read_bytes()
        if content.count(old) != 1:
            raise Fault(f"{path.name}: its RPATH {entries} cannot be cut")
        path.write_bytes(content.replace(old, RPATH.encode().ljust(len(old), b"\0")))


def libraries_of(programs):
    """Name and place of every library to bring along, as the loader of this machine finds them."""
    found = {}
    for program in programs:
        for line in output("ldd", program).splitlines():
            match = re.match(r"\s*(\S+) => (\S.*?)(?: \(0x|$)", line)
            if not match or GLIBC.fullmatch(match[1]) or DRIVER.fullmatch(match[1]) or CUDA.fullmatch(match[1]):
                continue
            if match[2].startswith("not found"):
                raise Fault(f"{program.name} needs {match[1]}, which this machine does not have")
            found[match[1]] = pathlib.Path(match[2])
    return found


def tests_of(build, programs):
    """CTest's own list: lines "NAME LABEL TIMEOUT [VARIABLE=VALUE...] PROGRAM", and the names of tests that stay here."""
    lines, left = [], []
    with tempfile.TemporaryDirectory() as folder:  # a CTest that lists writes over the log of the last run
        (pathlib.Path(folder) / "CTestTestfile.cmake").write_text(f'subdirs("{build}")')
        tests = json.loads(output("ctest", "--test-dir", folder, "--show-only=json-v1"))["tests"]
    for test in tests:
        properties = {each["name"]: each["value"] for each in test.get("properties", [])}
        label = (properties.get("LABELS") or ["none"])[0]
        command = test.get("command", [])
        program = pathlib.Path(command[0]) if command else None
        if label in NOT_RUN:
            continue
        if program is None or len(command) > 1 or program.name not in programs:
            left.append(test["name"])
            continue
        # Paths of this machine mean nothing elsewhere: a test that misses its tool says SKIPPED.
        variables = [each for each in properties.get("ENVIRONMENT", []) if "/" not in each and " " not in each]
        lines.append(" ".join([test["name"], label, str(int(properties.get("TIMEOUT", 120))), *variables, program.name]))
    return sorted(lines), sorted(left)


def stage(build, folder):
    """Puts everything in place. The names of the programs, and of the tests that stay here."""
    programs = (build / "programs.txt").read_text().split()
    missing = [name for name in programs if not (build / "bin" / name).exists()]
    if missing:
        raise Fault(f"{build}/bin has no {missing[0]}: build everything first")
    for part in ("bin", "lib", "tests/bench"):
        (folder / part).mkdir(parents=True)
    for name in programs:
        shutil.copy(build / "bin" / name, folder / "bin" / name)
        subprocess.run(["strip", folder / "bin" / name], check=True)
        cut_rpath(folder / "bin" / name)
    for name, path in libraries_of([build / "bin" / name for name in programs]).items():
        shutil.copy(path, folder / "lib" / name)
        if build in path.parents:
            subprocess.run(["strip", "--strip-unneeded", folder / "lib" / name], check=True)
            cut_rpath(folder / "lib" / name)
        (folder / "lib" / name).chmod(0o644)
    shutil.copytree(ROOT / "tests/data", folder / "tests/data", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copytree(ROOT / "tests/bench", folder / "tests/bench", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.cc", "*.h", "CMakeLists.txt", "results", "__pycache__"))
    shutil.copytree(build / "share", folder / "share")
    for script in ("run-gpu-tests.sh", "env.sh"):
        shutil.copy(HERE / script, folder)
    shutil.copy(HERE / "README.md", folder)
    shutil.copy(ROOT / "LICENSE", folder)
    tests, left = tests_of(build, programs)
    if not tests:
        raise Fault(f"CTest knows no test program in {build}")
    (folder / "tests/list.txt").write_text("\n".join(tests) + "\n")
    (folder / "VERSION").write_text(output(folder / "bin/kernd", "--version"))
    return programs, tests, left


def check(folder):
    """Every file finds its libraries beside it and nowhere else; no start depends on a GPU driver.

    Gives what the target must have: the glibc version, and the libraries of CUDA that something is linked to.
    """
    programs = [Elf(path) for path in sorted((folder / "bin").iterdir())]
    libraries = [Elf(path) for path in sorted((folder / "lib").iterdir())]
    here = {elf.name for elf in libraries}
    faults, cuda = [], set()
    for elf in programs:
        if elf.rpath != [RPATH] or elf.runpath:
            faults.append(f"bin/{elf.name}: RPATH must be {RPATH} alone, is {elf.rpath + elf.runpath}")
    for elf in libraries:
        if elf.runpath or not all(path.startswith("$ORIGIN") for path in elf.rpath):
            faults.append(f"lib/{elf.name}: has a path of its own: {elf.rpath + elf.runpath}")
    for elf in programs + libraries:
        for name in elf.needed:
            if DRIVER.fullmatch(name):
                faults.append(f"{elf.name}: is linked to the GPU driver's {name}, so it starts on GPU machines alone")
            elif CUDA.fullmatch(name):
                cuda.add(name)
            elif name not in here and not GLIBC.fullmatch(name):
                faults.append(f"{elf.name}: needs {name}, which is not in lib/")
    if faults:
        raise Fault("\n".join(faults))
    return ".".join(map(str, max(elf.glibc for elf in programs + libraries))), sorted(cuda)


def pack(folder, out):
    """Sorted, owned by root, dated 1970: equal trees give equal bytes. By xz, whose memory of 8 MiB sees that programs
    have much in common: half the size of gzip's."""

    def plain(entry):
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = "root"
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    buffer = io.BytesIO()
    with lzma.open(buffer, "wb", preset=6) as compressed:
        with tarfile.open(mode="w", fileobj=compressed, format=tarfile.GNU_FORMAT) as tar:
            for path in [folder, *sorted(folder.rglob("*"))]:
                tar.add(path, arcname=path.relative_to(folder.parent), recursive=False, filter=plain)
    size = len(buffer.getbuffer()) / 2**20
    if size > LIMIT_MIB:
        largest = sorted((path.stat().st_size, str(path.relative_to(folder))) for path in folder.rglob("*") if path.is_file())
        names = ", ".join(f"{name} {bytes / 2**20:.1f}" for bytes, name in reversed(largest[-8:]))
        raise Fault(f"{size:.1f} MiB packed, more than {LIMIT_MIB}; the largest, in MiB unpacked: {names}")
    out.write_bytes(buffer.getbuffer())
    return size


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, type=pathlib.Path, help="folder of a finished build")
    parser.add_argument("--out", type=pathlib.Path, help="the file to write")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(dir=args.build) as temporary:
            folder = pathlib.Path(temporary) / NAME
            programs, tests, left = stage(args.build.resolve(), folder)
            glibc, cuda = check(folder)
            parts = {part: size_of(folder / part) for part in ("bin", "lib", "tests")}
            libraries = len(list((folder / "lib").iterdir()))
            version = (folder / "VERSION").read_text().strip()
            print(f"  {version}")
            print(f"  bin    {parts['bin']:6.1f} MiB, {len(programs)} programs, {len(tests)} of them tests")
            print(f"  lib    {parts['lib']:6.1f} MiB, {libraries} libraries")
            print(f"  tests  {parts['tests']:6.1f} MiB, data and bench scripts")
            print(f"  needs  glibc {glibc}{''.join(', ' + name for name in cuda)}")
            print(f"  tests that stay here: {', '.join(left) or 'none'}")
            if args.out is None:
                return 0
            print("  packing", flush=True)
            size = pack(folder, args.out)
    except Fault as fault:
        print(fault, file=sys.stderr)
        return 1
    print(f"  {args.out}: {size:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
