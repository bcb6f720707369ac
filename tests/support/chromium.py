"""A headless Chromium that a test drives, over the DevTools protocol on a pipe: no port, no package.

    with Chromium(path) as browser:
        page = browser.open(url)
        page.wait_for("document.title === 'kernd'")
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PATIENCE = 60  # seconds for anything that ought to happen


def find():
    """The path of Chromium's program, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Chromium:
    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(prefix="kernd-chromium-", ignore_cleanup_errors=True)
        # The browser reads commands from descriptor 3 and writes answers to 4; keep these pairs clear of both.
        ours = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (*os.pipe(), *os.pipe())]
        commands, self.commands, self.answers, answers = ours

        def place():
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "--no-first-run",
             # Run by root, as in a container, it refuses to start with its sandbox.
             *(["--no-sandbox"] if os.geteuid() == 0 else []), "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "about:blank"],
            preexec_fn=place, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self.profile.name})
        os.close(commands)
        os.close(answers)
        self.buffer, self.number, self.events = b"", 0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError, AssertionError):
            self.send("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.profile.cleanup()

    def _message(self):
        """The next answer or event."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            part = os.read(self.answers, 1 << 16) if ready else b""
            assert part, f"Chromium has said nothing for {PATIENCE} s" if not ready else "Chromium has ended"
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, session=None, **parameters):
        """The result of a command. Events that come meanwhile are kept in `events`."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        text = json.dumps(command).encode() + b"\0"
        while text:
            text = text[os.write(self.commands, text):]
        while True:
            message = self._message()
            if message.get("id") == self.number:
                assert "error" not in message, f"{method}: {message.get('error')}"
                return message["result"]
            self.events.append(message)

    def open(self, url, dark=False, width=1280, height=900):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, target, self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.send("Page.navigate", url=url)
        return page


class Page:
    def __init__(self, browser, target, session):
        self.browser, self.target, self.session = browser, target, session

    def close(self):
        self.browser.send("Target.closeTarget", targetId=self.target)

    def send(self, method, **parameters):
        return self.browser.send(method, self.session, **parameters)

    def value(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait_for(self, expression, seconds=PATIENCE):
        """What `expression` is as soon as that is true; what fails, as while the page is loading, is not."""
        end = time.monotonic() + seconds
        guarded = f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()"
        while not (value := self.value(guarded)):
            assert time.monotonic() < end, f"not within {seconds} s: {expression}\n{self.value('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def events(self, method):
        """The parameters of each such event so far, for example "Network.requestWillBeSent"."""
        self.value("0")  # what came before this answer has been read
        return [event["params"] for event in self.browser.events
                if event["method"] == method and event.get("sessionId") == self.session]
