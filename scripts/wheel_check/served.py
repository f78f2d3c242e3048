"""One server of the environment that runs this: `python -m scripts.wheel_check.served`."""

from __future__ import annotations

import json
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.serving import complete_all, cpu_engine
from scripts.serving.arms import flag_args
from scripts.serving.bare import Roots, bare_server, feature_files, loaded_files
from scripts.serving.client import get_json
from scripts.serving.status import find_draft_path

NEW_TOKENS = 24
# What the two packages have to agree on.
KEPT = ("output_ids", "accept_length", "verify_rounds", "correct_histogram", "error")
PROMPTS = [[300, 1, 5, 900], [17, 44, 901, 6]]


def serve(folder: Path, packed: bool) -> dict[str, Any]:
    """Answers of the installed SGLang, what it says of itself, and stray files.

    The stand-ins for `sgl_kernel` are the one folder on the path. Raises ServerError.
    """
    site = Path(sysconfig.get_paths()["purelib"])
    flags = flag_args("packed") if packed else []
    log = folder / f"server-{'fork' if packed else 'stock'}.log"
    with bare_server(log, folder / "model", [], flags) as server:
        answers = complete_all(server.url, PROMPTS, NEW_TOKENS, 1)
        info = get_json(f"{server.url}/server_info")
    files = loaded_files(server.log_text())
    environment = (Path(sys.base_prefix),)
    roots = Roots(site, cpu_engine.CPU_ENGINE, environment, cpu_engine.ROOT)
    return {
        "version": info.get("version"),
        "draft_path": find_draft_path(info),
        "answers": [{key: asdict(answer)[key] for key in KEPT} for answer in answers],
        "strays": roots.strays(files),
        "from_site_packages": site / "sglang/launch_server.py" in files,
        "feature_files": feature_files(files, site),
    }


if __name__ == "__main__":
    found = serve(Path(sys.argv[2]), packed=sys.argv[1] == "fork")
    Path(sys.argv[2], f"{sys.argv[1]}.json").write_text(json.dumps(found))
