#!/bin/sh
# HOST, PORT and DRAFT (off, on, auto) come from the environment, the rest as arguments.
set -eu
exec python3 -m sglang.launch_server --host "$HOST" --port "$PORT" "$@" \
    --speculative-vocab-parallel-draft "$DRAFT"
