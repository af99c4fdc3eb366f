"""Chromium, driven through chromedriver's WebDriver protocol with Python's standard library alone.

  with Browser() as browser:            # prints why and exits with 77 where there is no Chromium
      browser.open(path)
      browser.run("return document.title")
"""
import base64
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

SKIPPED = 77
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of element references in the WebDriver standard
KEYS = {"left": "\ue012", "right": "\ue014", "home": "\ue011", "end": "\ue010"}


class Browser:
    """A headless window of 1280 x 900. Every name resolves to nothing: pages must not need a network."""

    def __init__(self):
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        driver = shutil.which("chromedriver")
        if not chromium or not driver:
            print("skipped: this test needs the packages chromium and chromium-driver")
            sys.exit(SKIPPED)
        self._profile = tempfile.TemporaryDirectory(prefix="sinkgrad-browser-")
        self._driver = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._session = None
        try:
            self._address = f"http://127.0.0.1:{self._port()}"
            arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-device-scale-factor=1",
                         "--window-size=1280,900", f"--user-data-dir={self._profile.name}", "--host-resolver-rules=MAP * ~NOTFOUND"]
            options = {"binary": chromium, "args": arguments}
            logs = {"browser": "ALL", "performance": "ALL"}
            session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": logs}}})
            self._session = "/session/" + session["sessionId"]
        except BaseException:
            self.close()
            raise

    def _port(self):
        for line in self._driver.stdout:
            if "started successfully on port" in line:
                return int(line.rstrip(".\n").split()[-1])
        raise RuntimeError(f"chromedriver ended with {self._driver.wait()} before it listened")

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {json.load(error)['value']['message']}") from None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        try:
            if self._session:
                self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._driver.stdout.close()
            self._profile.cleanup()

    def open(self, path):
        self.messages(), self._log("performance")
        self._page = pathlib.Path(path).resolve().as_uri()
        self._call("POST", self._session + "/url", {"url": self._page})

    def run(self, script, *arguments):
        """The value that a JavaScript function body returns."""
        return self._call("POST", self._session + "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, selector, key):
        """Types a key of KEYS into the first element that a CSS selector finds."""
        element = self._call("POST", self._session + "/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._call("POST", f"{self._session}/element/{element}/value", {"text": KEYS[key]})

    def devtools(self, command, **parameters):
        return self._call("POST", self._session + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def prefer(self, scheme):
        """"light" or "dark"."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, width, height):
        self._call("POST", self._session + "/window/rect", {"width": width, "height": height})

    def _log(self, kind):
        """What this log has gathered since it was last asked for."""
        return [entry["message"] for entry in self._call("POST", self._session + "/se/log", {"type": kind})]

    def messages(self):
        """What the page has written to the console since the last call or open(), errors among it."""
        return self._log("browser")

    def requests(self):
        """The addresses that the page has asked for since the last call or open(), itself included; without data: addresses."""
        addresses = set()
        for event in (json.loads(message)["message"] for message in self._log("performance")):
            if event["method"] == "Network.requestWillBeSent" and event["params"]["documentURL"] == self._page:
                addresses.add(event["params"]["request"]["url"])
        return {address for address in addresses if not address.startswith("data:")}

    def screenshot(self, path, whole=True):
        """A PNG of the whole page, or of the window."""
        taken = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole, format="png",
                              **({"clip": self._page_rectangle()} if whole else {}))
        pathlib.Path(path).write_bytes(base64.b64decode(taken["data"]))

    def _page_rectangle(self):
        size = self.run("return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        return {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
