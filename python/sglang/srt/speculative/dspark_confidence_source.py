"""What ``--speculative-dspark-confidence-source draft-probability`` can be used with.

Checked while arguments are resolved, so that nothing here imports a model.
"""

from __future__ import annotations

import logging
from typing import Any, Optional

from sglang.srt.speculative.ragged_verify import (
    RaggedVerifyMode,
    read_ragged_verify_mode,
)

logger = logging.getLogger(__name__)

FLAG = "--speculative-dspark-confidence-source"


def check_arguments(args: Any) -> None:
    """Refuse the source for another algorithm, say where it does nothing.

    Raises:
        ValueError: the resolved algorithm is not DSPARK.
    """
    if args.speculative_algorithm != "DSPARK":
        raise ValueError(
            f"{FLAG} draft-probability is DSpark's, and --speculative-algorithm is "
            f"{args.speculative_algorithm}: leave the flag out, or use DSPARK."
        )
    if read_ragged_verify_mode() is RaggedVerifyMode.STATIC:
        logger.warning(
            "%s draft-probability has no effect with SGLANG_RAGGED_VERIFY_MODE=static, "
            "which computes no confidence.",
            FLAG,
        )


def log_other_source() -> None:
    """Beside SGLang's refusal of a draft without a confidence head: what runs it."""
    logger.error(
        "This draft runs without a confidence head with %s draft-probability.", FLAG
    )


def check_sampler(megakernel_sampler: Optional[Any]) -> None:
    """Refuse a megakernel that drafts.

    Raises:
        ValueError: there is one; it leaves no step logits of greedy rows.
    """
    if megakernel_sampler is not None:
        raise ValueError(
            f"{FLAG} draft-probability needs the logits of every draft step, which the "
            "NVIDIA megakernel does not give: run without --enable-nvidia-megakernel, "
            f"or with {FLAG} head."
        )
