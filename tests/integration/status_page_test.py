#!/usr/bin/env python3
"""The status page in a real Chromium, against a kernd that serves, refuses hostile calls, ends and comes back.

Usage: status_page_test.py BIN    (the folder of kernd and kernctl)

Prints "SKIPPED: why" where Chromium is missing.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import chromium  # noqa: E402

BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/bin")

# Each would leave a mark on `window` or ask for an address, if it were anything but text.
HOSTILE = ("<img src=/x onerror=window.owned=1>", "</td><script>window.owned=1</script>",
           "<svg/onload=window.owned=1><iframe src=//example.invalid>", "'\"><b style=color:red>${window.owned=1}</b>")

# What of a page could be loaded or run, other than its own style and script.
FOREIGN = "[...document.querySelectorAll('img, iframe, object, embed, b, svg:not(h1 svg), script, style')].length"


class Daemon:
    """A kernd on the loopback until `test` ends; `http` chooses its port again."""

    def __init__(self, test, http="127.0.0.1:0"):
        with tempfile.TemporaryDirectory(prefix="kernd-status-") as folder:
            ports = pathlib.Path(folder) / "ports"
            self.process = subprocess.Popen(
                [BIN / "kernd", "--backend", "cpu", "--listen", "127.0.0.1:0", "--http-listen", http, "--port-file", ports,
                 "--drain-delay", "0s"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            test.addCleanup(self.process.wait)
            test.addCleanup(self.process.kill)
            end = time.monotonic() + chromium.PATIENCE
            while not ports.exists():
                assert self.process.poll() is None and time.monotonic() < end, "kernd did not come up"
                time.sleep(0.02)
            text = ports.read_text()
        self.grpc, self.http = (re.search(rf"^{name}=(.*)$", text, re.MULTILINE)[1] for name in ("grpc", "http"))
        self.url = f"http://{self.http}/"
        assert self.call("health", "--wait", "30s") == 0

    def call(self, *arguments):
        return subprocess.run([BIN / "kernctl", "--endpoint", self.grpc, *arguments], capture_output=True,
                              check=False).returncode

    def status(self):
        with urllib.request.urlopen(f"{self.url}status.json", timeout=10) as reply:
            return json.load(reply)

    def stop(self):
        self.process.terminate()
        self.process.wait(chromium.PATIENCE)


class StatusPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = chromium.Chromium(chromium.find())
        cls.addClassCleanup(cls.browser.__exit__)

    def open(self, daemon, **options):
        page = self.browser.open(daemon.url, **options)
        self.addCleanup(page.close)
        page.wait_for("!document.getElementById('main').hidden")
        return page

    def faults(self, page):
        """What the browser complains of: exceptions, violations of the policy, refused or failed requests."""
        return page.events("Log.entryAdded") + page.events("Runtime.exceptionThrown") + page.events("Network.loadingFailed")

    def test_numbers_arrive_and_go_on(self):
        daemon = Daemon(self)
        page = self.open(daemon)
        self.assertEqual(page.value("document.getElementById('state').textContent"), "ready")
        self.assertEqual(page.value("document.getElementById('calls').textContent"), "")
        for _ in range(3):
            self.assertEqual(daemon.call("matmul", "--random", "64x64x64"), 0)
        self.assertEqual(daemon.call("attention", "--random", "1x2x32x16"), 0)
        page.wait_for("[...document.querySelectorAll('#calls tr')].map(row => [...row.children].map(cell => "
                      "cell.textContent)).some(row => row[0] === 'Compute/Matmul' && row[1] === 'OK' && row[4] === '3')")
        page.wait_for("document.getElementById('kernels').textContent.includes('attention_')")
        page.wait_for("[...document.querySelectorAll('#stages th')].some(cell => cell.textContent === 'kernel')")
        status = daemon.status()
        text = page.value("document.body.innerText")
        for expected in (status["program"]["version"], status["program"]["compiler"], status["devices"][0]["name"],
                         *status["devices"][0]["hardware_has"], status["devices_not_used"][0], "request bodies"):
            self.assertIn(expected, text)
        self.assertEqual(self.faults(page), [])

    def test_hostile_text_is_text_and_nothing_comes_from_elsewhere(self):
        daemon = Daemon(self)
        page = self.open(daemon)
        before = page.value(FOREIGN)
        for text in HOSTILE:
            self.assertEqual(daemon.call("matmul", "--random", "8x8x8", "--kernel", text, "--request-id", text), 3, text)
        page.wait_for(f"document.querySelectorAll('#errors tr').length === {len(HOSTILE)}")
        for text in HOSTILE:
            shown = page.value(f"document.getElementById('errors').textContent.split({json.dumps(text)}).length - 1")
            self.assertEqual(shown, 2, f"in the message and as the id: {text}")
        self.assertIsNone(page.value("window.owned ?? null"))
        self.assertEqual(page.value(FOREIGN), before)
        urls = {event["request"]["url"] for event in page.events("Network.requestWillBeSent")
                if not event["request"]["url"].startswith("data:")}
        self.assertEqual(urls, {daemon.url, f"{daemon.url}status.json"})
        self.assertEqual(self.faults(page), [])

    # Were the policy not there or not strict, these would run.
    def test_the_policy_forbids_what_is_not_the_pages_own(self):
        page = self.open(Daemon(self))
        page.value("const script = document.createElement('script'); script.textContent = 'window.owned = 1';"
                   "document.body.append(script);"
                   "document.body.insertAdjacentHTML('beforeend', '<i onclick=\"window.owned=1\">x</i>');"
                   "document.querySelector('i').click()")
        self.assertIsNone(page.value("window.owned ?? null"))
        page.value("fetch('http://example.invalid/').catch(() => 0)")
        refused = [entry["entry"]["text"] for entry in page.events("Log.entryAdded")]
        for directive in ("script-src", "connect-src"):
            self.assertTrue(any(directive in text for text in refused), f"{directive}: {refused}")

    def test_it_says_so_when_the_daemon_is_gone_and_goes_on_when_it_is_back(self):
        daemon = Daemon(self)
        page = self.open(daemon)
        daemon.stop()
        page.wait_for("document.getElementById('state').textContent.startsWith('no answer since ')")
        self.assertTrue(page.value("document.title").startswith("gone"))
        self.assertEqual(page.value("document.getElementById('state').getAttribute('role')"), "status")
        Daemon(self, daemon.http)
        page.wait_for("document.getElementById('state').textContent === 'ready'")
        self.assertEqual(page.value("document.title"), "kernd")

    def test_it_asks_only_while_it_is_seen(self):
        page = self.open(Daemon(self))
        page.wait_for("performance.getEntriesByType('resource').length > 1")
        # As the browser has it for a tab in the background.
        page.value("Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
                   "document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for("!asking")
        asked = page.value("performance.getEntriesByType('resource').length")
        page.value("new Promise(done => setTimeout(done, 2500))")
        self.assertEqual(page.value("performance.getEntriesByType('resource').length"), asked)
        page.value("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for(f"performance.getEntriesByType('resource').length > {asked}")

    def test_tables_have_headers_and_the_page_fits(self):
        daemon = Daemon(self)
        self.assertEqual(daemon.call("matmul", "--random", "8x8x8"), 0)
        for options in ({}, {"dark": True}, {"width": 360}):
            page = self.open(daemon, **options)
            page.wait_for("document.querySelectorAll('#calls tr').length === 1")
            self.assertEqual(page.value("[...document.querySelectorAll('table')].filter(table => !table.caption || "
                                        "[...table.querySelectorAll('th')].some(cell => !cell.scope)).length"), 0)
            self.assertLessEqual(page.value("document.documentElement.scrollWidth"), options.get("width", 1280))
            self.assertGreaterEqual(self.contrast(page), 4.5, options)

    def contrast(self, page):
        """The least contrast between text and the page, as WCAG counts it."""
        return page.value("""(() => {
          const luminance = color => color.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
            .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
          const back = luminance(getComputedStyle(document.querySelector('.card')).backgroundColor);
          return Math.min(...[...document.querySelectorAll('main *, #state')].filter(node => node.innerText && !node.matches('.tag'))
            .map(node => luminance(getComputedStyle(node).color))
            .map(front => (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05)));
        })()""")

    def test_without_javascript_it_leads_on(self):
        daemon = Daemon(self)
        with urllib.request.urlopen(daemon.url, timeout=10) as reply:
            html = reply.read().decode()
            self.assertEqual(reply.headers["X-Content-Type-Options"], "nosniff")
        self.assertIn("<noscript>", html)
        for name in re.findall(r'<a href="([^"]+)"', html):
            with urllib.request.urlopen(daemon.url + name, timeout=10) as reply:
                self.assertEqual(reply.status, 200, name)


if __name__ == "__main__":
    if chromium.find() is None:
        print("SKIPPED: chromium is not installed")
    else:
        unittest.main()
