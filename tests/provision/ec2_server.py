"""An EC2 that runs in a test host: moto's server, with refusals and pauses on order.

`python -m tests.provision.ec2_server FOLDER` reads orders.json there at each request: `refuse`, `{action: [code,
message]}`; `pause`, `[which, after]`: the n-th request, or all for an action, write the file `paused` and wait until
it is gone, before they are carried out or after. Each request is a line in requests.log. All of this is for requests of
the machine `client` of the orders. Whoever asks for it, each end of machines is a line in terminations.log: the access
key and the instances.
"""

import io
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

PORT = 5000
PAUSE_S = 60.0
ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?>'
    "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors>"
    "<RequestID>0</RequestID></Response>"
)


class OnOrder:
    """A WSGI application around moto's.

    Args:
        app: of moto.
        folder: of the orders.
    """

    def __init__(self, app: Any, folder: Path):
        self.app, self.folder = app, folder
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        asked = parse_qs(body.decode(errors="replace"))
        action = asked.get("Action", [environ["PATH_INFO"]])[0]
        if action == "TerminateInstances":
            key = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition("/")[0]
            instances = [values[0] for name, values in sorted(asked.items()) if name.startswith("InstanceId.")]
            with (self.folder / "terminations.log").open("a") as log:
                log.write(f"{key} {' '.join(instances)}\n")
        orders = json.loads((self.folder / "orders.json").read_text())
        if environ["REMOTE_ADDR"] != orders["client"]:
            return self.app(environ, start_response)
        with self._lock:
            with (self.folder / "requests.log").open("a") as log:
                log.write(f"{action}\n")
            number = len((self.folder / "requests.log").read_text().splitlines())
        here, after = orders.get("pause") or (0, False)
        is_here = here in (number, action)
        if is_here and not after:
            self._pause(action)
        if action in orders.get("refuse", {}):
            start_response("400 Bad Request", [("Content-Type", "text/xml")])
            return [ERROR.format(*orders["refuse"][action]).encode()]
        answer = self.app(environ, start_response)
        if is_here and after:
            answer = [b"".join(answer)]
            self._pause(action)
        return answer

    def _pause(self, action: str) -> None:
        paused = self.folder / "paused"
        (self.folder / "paused.new").write_text(action)
        (self.folder / "paused.new").rename(paused)
        deadline = time.monotonic() + PAUSE_S
        while paused.exists() and time.monotonic() < deadline:
            time.sleep(0.02)


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    app = OnOrder(DomainDispatcherApplication(create_backend_app), Path(sys.argv[1]))
    run_simple("0.0.0.0", PORT, app, threaded=True)


if __name__ == "__main__":
    main()
