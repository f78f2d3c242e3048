"""A server that answers like SGLang's at once, for tests of the runner around it.

`AB_STAND_IN` names a folder of switches: a file `die-at-start` ends it before it is ready,
`die-once` at its next request (and is removed), `slow` and `fail` are for the client.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
from pathlib import Path

FLAG = "--speculative-vocab-parallel-draft"
SWITCHES = Path(os.environ["AB_STAND_IN"])


def value_of(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        mode = value_of(FLAG)
        path = {"mode": mode, "path": "packed" if mode == "on" else "dense"}
        state = {"avg_spec_accept_length": 2.0, "vocab_parallel_draft": path}
        self.answer({"version": "stand-in", "internal_states": [state]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if (SWITCHES / "die-once").exists():
            (SWITCHES / "die-once").unlink()
            print("RuntimeError: ran out of memory", flush=True)
            os._exit(9)
        count = body["sampling_params"]["max_new_tokens"]
        meta = {"finish_reason": "length", "spec_verify_ct": count // 2}
        ids = [sum(body["input_ids"]) % 7] * count
        self.answer({"output_ids": ids, "meta_info": meta})

    def answer(self, data: dict) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def log_message(self, *args: object) -> None:
        pass


if __name__ == "__main__":
    if (SWITCHES / "die-at-start").exists():
        print("loading\nRuntimeError: the model does not fit\nbye", flush=True)
        sys.exit(3)
    address = ("127.0.0.1", int(value_of("--port")))
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()
