#!/usr/bin/env python3
"""kernctl top on a pseudo-terminal: draws in place, fits the window, and gives the terminal back as it was.

Usage: top_screen_test.py BIN    (the folder of kernd and kernctl)
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2] / "build/bin")
PATIENCE = 60
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def start_daemon(folder):
    """A kernd on free ports: the process, its gRPC and its HTTP address."""
    ports = pathlib.Path(folder) / "ports"
    daemon = subprocess.Popen(
        [BIN / "kernd", "--backend", "cpu", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--port-file", ports],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE
    while not ports.exists():
        assert daemon.poll() is None and time.monotonic() < end, "kernd did not come up"
        time.sleep(0.02)
    text = ports.read_text()
    return (daemon, *(re.search(rf"^{name}=(.*)$", text, re.MULTILINE)[1] for name in ("grpc", "http")))


# Leads the session of a terminal, which would be hung up, and its settings lost, with the end of kernctl otherwise.
# Writes kernctl's process id and exit code to one pipe, and stays until the other is closed.
LEADER = """
import fcntl, os, signal, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, lambda *_: None)
child = subprocess.Popen(sys.argv[3:])
os.write(int(sys.argv[1]), b"%d\\n" % child.pid)
os.write(int(sys.argv[1]), b"%d\\n" % child.wait())
os.read(int(sys.argv[2]), 1)
"""


class Terminal:
    """kernctl top on a terminal of its own."""

    def __init__(self, http, size=(24, 80)):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        environment = {**os.environ, "TERM": "xterm"}
        environment.pop("NO_COLOR", None)
        told, tell = os.pipe()
        stay, self.leave = os.pipe()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.leader = subprocess.Popen(
            [sys.executable, "-c", LEADER, str(tell), str(stay), BIN / "kernctl", "top", "--http", http, "--interval",
             "100ms"], stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environment, start_new_session=True,
            pass_fds=(tell, stay))
        os.close(tell)
        os.close(stay)
        self.told = os.fdopen(told)
        self.pid = int(self.told.readline())

    def resize(self, size):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))  # SIGWINCH comes with it

    def read_until(self, done):
        """Reads until done(what came since the call)."""
        start, end = len(self.output), time.monotonic() + PATIENCE
        while not done(self.output[start:]):
            assert time.monotonic() < end, f"waited in vain; last: {self.output[-2000:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.output += os.read(self.master, 65536)
        return self.output[start:]

    def picture(self):
        """The lines of the next whole picture, without colours."""
        since = self.read_until(lambda out: re.search(rb"\x1b\[\?2026h\x1b\[H.*?\x1b\[\?2026l", out, re.DOTALL))
        body = re.search(rb"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[\?2026l", since, re.DOTALL)[1]
        return re.split(r"\r+\n", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", body.decode()))

    def key(self, text):
        os.write(self.master, text)

    def end(self):
        """The exit code, after all output was read."""
        self.read_until(lambda _: LEAVE in self.output)
        return int(self.told.readline())

    def wait_for_state(self, state):
        """Until the kernel says so of kernctl: "T" is stopped."""
        end = time.monotonic() + PATIENCE
        while pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
            assert time.monotonic() < end, f"not in state {state}"
            time.sleep(0.01)

    def close(self):
        os.close(self.leave)
        self.leader.kill()  # and with it the terminal's other processes, by SIGHUP
        self.leader.wait()
        self.told.close()
        os.close(self.master)
        os.close(self.slave)


class TopScreenTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="kernd-top-")
        cls.daemon, cls.grpc, cls.http = start_daemon(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.daemon.kill()
        cls.daemon.wait()
        cls.folder.cleanup()

    def open(self, **arguments):
        terminal = Terminal(arguments.pop("http", self.http), **arguments)
        self.addCleanup(terminal.close)
        return terminal

    def assert_restored(self, terminal):
        out = terminal.output
        self.assertEqual((out.count(ENTER), out.count(LEAVE)), (1, 1))
        self.assertLess(out.index(ENTER), out.index(LEAVE))
        tail = out[out.index(LEAVE) - 40:]
        self.assertIn(b"\x1b[?25h", tail, "the cursor is seen again")
        self.assertIn(b"\x1b[?7h", tail, "lines are wrapped again")
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before, "keys are echoed again")

    def test_draws_and_q_leaves(self):
        terminal = self.open()
        lines = terminal.picture()
        self.assertIn("kernd ", lines[0])
        self.assertLessEqual(len(lines), 24)
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertIn("q quits", lines[-1])
        self.assertFalse(termios.tcgetattr(terminal.slave)[3] & termios.ECHO)
        terminal.key(b"q")
        self.assertEqual(terminal.end(), 0)
        self.assert_restored(terminal)
        self.assertEqual(terminal.output.count(b"\x1b[2J"), 1, "drawn in place, never wiped")

    def test_ctrl_c_and_signals_restore_the_screen(self):
        for how, code in ((None, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)):
            with self.subTest(how=how):
                terminal = self.open()
                terminal.picture()
                if how is None:
                    terminal.key(b"\x03")
                else:
                    os.kill(terminal.pid, how)
                self.assertEqual(terminal.end(), code)
                self.assert_restored(terminal)

    def test_follows_the_window(self):
        terminal = self.open()
        terminal.picture()
        terminal.resize((10, 40))
        terminal.read_until(lambda out: b"\x1b[2J" in out)
        lines = terminal.picture()
        self.assertLessEqual(len(lines), 10)
        self.assertLessEqual(max(map(len, lines)), 40)

    def test_p_pauses(self):
        terminal = self.open()
        terminal.picture()
        terminal.key(b"p")
        terminal.read_until(lambda out: b"PAUSED" in out)
        terminal.key(b"p")
        while "PAUSED" in terminal.picture()[0]:
            pass

    def test_waits_for_a_daemon_that_is_not_there(self):
        terminal = self.open(http="unix:" + self.folder.name + "/none")
        terminal.read_until(lambda out: b"no kernd's HTTP port at" in out)
        terminal.key(b"q")
        self.assertEqual(terminal.end(), 0)
        self.assert_restored(terminal)

    def test_is_suspended_and_comes_back(self):
        terminal = self.open()
        terminal.picture()
        os.kill(terminal.pid, signal.SIGTSTP)
        terminal.read_until(lambda out: LEAVE in out)
        terminal.wait_for_state("T")
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.read_until(lambda out: ENTER in out)
        terminal.picture()
        terminal.key(b"q")
        terminal.read_until(lambda out: LEAVE in out)
        self.assertEqual(int(terminal.told.readline()), 0)
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)

    def test_one_picture_is_as_wide_as_columns_says(self):
        for columns, widest in (("40", 40), ("100", 100), ("", 120), ("wide", 120)):
            printed = subprocess.run([BIN / "kernctl", "top", "--once", "--http", self.http], check=True, text=True,
                                     stdout=subprocess.PIPE, env={**os.environ, "COLUMNS": columns}).stdout
            self.assertEqual(max(map(len, printed.splitlines())), widest, printed)

    def test_output_that_goes_nowhere_is_told(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            top = subprocess.run([BIN / "kernctl", "top", "--once", "--http", self.http], check=False, text=True,
                                 stdout=full, stderr=subprocess.PIPE)
        self.assertEqual((top.returncode, top.stderr), (1, "kernctl: standard output cannot be written\n"))

    def test_json_is_a_stream_of_lines(self):
        top = subprocess.Popen([BIN / "kernctl", "top", "--http", self.http, "--json", "--interval", "100ms"],
                               stdout=subprocess.PIPE, text=True)
        try:
            times = [json.loads(top.stdout.readline())["time_seconds"] for _ in range(3)]
        finally:
            top.kill()
            top.wait()
            top.stdout.close()
        self.assertEqual(sorted(set(times)), times)


if __name__ == "__main__":
    unittest.main()
