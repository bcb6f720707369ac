#!/usr/bin/env python3
"""The manual pages: every option of --help is there, and they are sound roff.

Usage: man_test.py BIN MAN    (the folder of kernd and kernctl, the folder of kernctl.1 and kernd.8)

The roff is checked by mandoc -Tlint or man --warnings; says "SKIPPED: why" for that part where neither is there.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAN = pathlib.Path(sys.argv.pop(2) if len(sys.argv) > 2 else ROOT / "build/cmake/man")
BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/bin")
PAGES = ("kernctl.1", "kernd.8")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def options_of(text):
    """Options where --help defines one: at the beginning of a line."""
    return set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]*)", text, re.MULTILINE))


def plain(page):
    """The page's text: roff's escapes undone."""
    text = (MAN / page).read_text()
    return text.replace("\\-", "-").replace("\\(aq", "'").replace("\\&", "")


class ManTest(unittest.TestCase):

    def assert_named(self, options, page, where):
        defined = set(re.findall(r'^\.B "(?:-\w, )?(--[a-z][a-z-]*)', page, re.MULTILINE))
        self.assertEqual(options - defined, set(), f"{where}: not in the page")

    def test_kernctl_has_every_command_and_option(self):
        page = plain("kernctl.1")
        help_text = run(BIN / "kernctl", "--help")
        self.assertGreater(len(options_of(help_text)), 4)
        self.assert_named(options_of(help_text), page, "kernctl")
        commands = re.findall(r"^  ([a-z][a-z-]+) ", help_text.split("Subcommands:")[1], re.MULTILINE)
        self.assertGreater(len(commands), 6)
        sections = re.split(r'^\.S[SH] "', page, flags=re.MULTILINE)
        for command in commands:
            section = [text for text in sections if text.startswith(command + '"')]
            self.assertEqual(len(section), 1, command)
            self.assert_named(options_of(run(BIN / "kernctl", command, "--help")), section[0], command)

    def test_kernd_has_every_option(self):
        options = options_of(run(BIN / "kernd", "--help"))
        self.assertGreater(len(options), 20)
        self.assert_named(options, plain("kernd.8"), "kernd")

    def test_defaults_are_of_no_machine(self):
        page = plain("kernd.8")
        for option in ("--memory-limit", "--cpu-threads", "--io-threads", "--body-budget"):
            entry = re.search(rf'^\.B "{option} .*?(?=^\.)', page, re.MULTILINE | re.DOTALL)[0]
            self.assertNotIn("Default:", entry)
        self.assertIn("Default: 127.0.0.1:50051.", page)

    def test_pages_are_sound(self):
        if shutil.which("mandoc"):
            for page in PAGES:
                done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", MAN / page], capture_output=True, text=True,
                                      check=False)
                self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        elif shutil.which("man") and shutil.which("groff"):
            for page in PAGES:
                done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", MAN / page],
                                      capture_output=True, text=True, check=False, env={**os.environ, "MANWIDTH": "80"})
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertGreater(len(done.stdout), 1000)
        else:
            print("SKIPPED: neither mandoc nor man with groff")
            self.skipTest("neither mandoc nor man with groff")


if __name__ == "__main__":
    unittest.main()
