"""Exit code 0 while the server of this container answers `/health`."""

from __future__ import annotations

import http.client
import os
import sys
import urllib.request


def healthy(port: str) -> bool:
    """Whether `/health` on the loopback interface answers 200 within 8 seconds."""
    url = f"http://127.0.0.1:{port}/health"
    try:
        with urllib.request.urlopen(url, timeout=8) as response:
            return response.status == 200
    except (OSError, http.client.HTTPException):
        return False


if __name__ == "__main__":
    sys.exit(0 if healthy(os.environ.get("PORT", "30000")) else 1)
