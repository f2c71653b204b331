"""A learned policy around a real HTTP call.  Gymnasium is not needed.

    python examples/recover_http.py [POLICY]

POLICY is a spec such as learned:recovery (the default), learned:PATH, guard or wait:300.  `recover`
is all that a client needs; the rest is a service that answers too late, so that there is something
to recover from.  Its hours pass in minutes: `SPEED` seconds of the policy's clock in each real one.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from exactlyonce_env.client_history import ClientHistory
from exactlyonce_env.presets import load_plan
from policies.base import Policy
from policies.deciding import decide
from policies.spec import parse_policy

SPEED = 60.0
COMMITS_AFTER_S = 90.0  # on the policy's clock; the client gives up after 30 s


def recover(url: str, policy: Policy, contract: Any) -> str:
    """Create the order exactly once, or say that it is uncertain; returns the last action."""
    history = ClientHistory(contract, clock=lambda: SPEED * time.monotonic())

    def send() -> None:
        try:
            urlopen(Request(url, data=b"{}"), timeout=contract.client_timeout_s / SPEED).close()
            history.sent("success")
        except TimeoutError:
            history.sent("timeout")
        except HTTPError:
            history.sent("server_error")

    send()
    while True:
        action, seconds = decide(policy, history.view)
        print(f"{history.view.clock_s:6.0f} s  {action}" + (f" {seconds:g} s" if seconds else ""))
        if action == "read":
            with urlopen(url) as answer:
                history.read(*[0] if json.load(answer) else [])
        elif action == "wait":
            time.sleep(seconds / SPEED)
            history.waited()
        elif action == "retry":
            send()
        else:  # finish, finish_uncertain, or escalate: a person has to look
            return action


class LateService(BaseHTTPRequestHandler):
    """POST creates an order, but answers late and creates it later still; GET lists the orders."""

    orders: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        threading.Timer(COMMITS_AFTER_S / SPEED, self.orders.append, ["an order"]).start()
        time.sleep(40.0 / SPEED)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.orders).encode())

    def log_message(self, *args: object) -> None:
        """Leave the terminal to the client."""


def main() -> None:
    policy = parse_policy(sys.argv[1] if len(sys.argv) > 1 else "learned:recovery")
    assert isinstance(policy, Policy), "a client sees no hidden state"
    contract = load_plan("late-tail").contracts[0]  # what the service promises and documents
    rehearsal = ClientHistory(contract)  # compiles what is used below, before it matters
    rehearsal.sent("timeout")
    rehearsal.read()
    decide(policy, rehearsal.view)
    service = ThreadingHTTPServer(("127.0.0.1", 0), LateService)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    print("ended with", recover(f"http://127.0.0.1:{service.server_port}/orders", policy, contract))
    time.sleep(COMMITS_AFTER_S / SPEED)  # whatever is in flight lands
    print("orders at the service:", len(LateService.orders))


if __name__ == "__main__":
    main()
