#!/bin/sh
# The build steps of the image, and of any environment that has SGLang of the pin:
# make the fork's wheel, put it over the installed package, and look at the result.
#   PYTHON  the environment's interpreter (default: python3)
#   WHEEL   the pinned SGLang wheel, when it must not be downloaded
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

"$python" docker/installed.py base
"$python" scripts/fork wheel --out "$wheels" ${WHEEL:+--wheel "$WHEEL"}
# The base image may mark its Python as managed by the system.
export PIP_BREAK_SYSTEM_PACKAGES=1
# Dependencies are those of the base: the fork changes none.
"$python" -m pip install --quiet --no-deps --no-index --force-reinstall "$wheels"/*.whl
"$python" docker/installed.py fork
