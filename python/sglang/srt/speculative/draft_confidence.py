"""Exact probability of drafted tokens, and what follows from it for a chain.

A chain's conditional probability ``[rows, steps]`` holds in column ``i`` the draft
model's softmax probability of its ``i``-th token, given the tokens before it. Every
operation here works element by element or column after column, so that equal input bits
give equal output bits on every rank, whatever the number of rows.
"""

from __future__ import annotations

import math

import torch

TEMPERATURES_FLAG = "--speculative-draft-confidence-temperatures"

_BELOW_ONE = 1.0 - 2.0**-24
_SMALLEST = torch.finfo(torch.float32).tiny

_LARGEST = 700.0
# ln 2 in two parts: a multiple of the first by an exponent is exact.
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_ARTANH = tuple(2.0 / (2 * k + 1) for k in range(7, -1, -1))
_EXPONENTIAL = tuple(1.0 / math.factorial(n) for n in range(11, -1, -1))


def selected_probability(logits: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """Softmax probability of the selected token, ``exp(logit - logsumexp)``.

    Args:
        logits: selected logits, FP32, any shape.
        logsumexp: log-sum-exp over the whole vocabulary, FP32, of a shape that
            broadcasts to that of the logits.

    Returns:
        FP32 probability in [0, 1], of the logits' shape; 0 where the log-sum-exp is NaN or
        infinite.
    """
    probability = torch.exp(logits - logsumexp).clamp_(max=1.0)
    return torch.where(logsumexp.isfinite(), probability, 0.0)


def probability_logit(probability: torch.Tensor) -> torch.Tensor:
    """``log(p / (1 - p))``, FP32, finite: what a confidence head would put out.

    ``p`` is held between the smallest normal FP32 number (a logit of -87.3) and
    ``1 - 2**-24``, the number next below 1 (16.6).
    """
    return torch.logit(probability.clamp(_SMALLEST, _BELOW_ONE))


def calibrated(probability: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Temperature-scaled probability, ``sigmoid(logit(p) / T)`` with a ``T`` a position.

    The scaling of SGLang's STS files (sequential temperature scaling), whose fit reads
    ``probability_logit``. Every host of a group computes it for itself: it takes only
    operations that IEEE 754 rounds in one way, in FP64, and no library's ``exp``.

    Args:
        probability: FP32 ``[rows, steps]``, conditional probabilities of a chain.
        temperatures: FP32 ``[positions]``, all above 0, at least ``steps`` of them.

    Returns:
        FP32 ``[rows, steps]`` in [0, 1]. A temperature of 1 leaves the bits as they
        are, a probability of 0 stays 0 at every temperature.

    Raises:
        ValueError: fewer temperatures than steps.
    """
    steps = probability.shape[-1]
    if temperatures.shape[0] < steps:
        raise ValueError(f"{temperatures.shape[0]} temperatures for {steps} positions")
    temperatures = temperatures[:steps].to(probability.device)
    held = probability.clamp(_SMALLEST, _BELOW_ONE).double()
    against = _log((1.0 - held) / held) / temperatures.double()
    odds = _exp(against.clamp_(-_LARGEST, _LARGEST))
    scaled = (1.0 / (1.0 + odds)).float()
    keeps = (temperatures == 1.0) | (probability == 0.0)
    return torch.where(keeps, probability, scaled)


def _log(numbers: torch.Tensor) -> torch.Tensor:
    """Natural logarithm of positive normal FP64 numbers, to some 1e-13."""
    fraction, exponent = torch.frexp(numbers)
    low = fraction < math.sqrt(0.5)
    fraction = torch.where(low, fraction * 2.0, fraction)
    exponent = torch.where(low, exponent - 1, exponent).double()
    ratio = (fraction - 1.0) / (fraction + 1.0)
    series = _polynomial(ratio * ratio, _ARTANH)
    return exponent * _LN2_HIGH + (ratio * series + exponent * _LN2_LOW)


def _exp(numbers: torch.Tensor) -> torch.Tensor:
    """Exponential of FP64 numbers between -700 and 700, to some 1e-13."""
    exponent = torch.round(numbers * (1.0 / math.log(2.0)))
    rest = numbers - exponent * _LN2_HIGH - exponent * _LN2_LOW
    power_of_two = ((exponent.long() + 1023) << 52).view(torch.float64)
    return _polynomial(rest, _EXPONENTIAL) * power_of_two


def _polynomial(numbers: torch.Tensor, coefficients: tuple) -> torch.Tensor:
    """``coefficients`` from the highest power on; no fused multiplication and addition."""
    total = torch.full_like(numbers, coefficients[0])
    for coefficient in coefficients[1:]:
        total.mul_(numbers).add_(coefficient)
    return total


def chain_survival(probability: torch.Tensor) -> torch.Tensor:
    """Probability that a chain's tokens up to each position are all right.

    Args:
        probability: conditional probabilities, FP32 ``[rows, steps]``.

    Returns:
        FP32 ``[rows, steps]``: products over the columns from the left, multiplied in
        that order.
    """
    survival = torch.empty_like(probability, memory_format=torch.contiguous_format)
    for step in range(probability.shape[-1]):
        column = probability[:, step]
        if step > 0:
            column = survival[:, step - 1] * column
        survival[:, step] = column
    return survival


def expected_accept_length(survival: torch.Tensor) -> torch.Tensor:
    """Expected accept length, FP32 ``[rows]``: ``1 + sum(survival)`` over the steps.

    The 1 is the bonus token. ``survival``: ``chain_survival``'s, FP32 ``[rows, steps]``,
    added from the left.
    """
    length = survival.new_ones(survival.shape[0])
    for step in range(survival.shape[-1]):
        length += survival[:, step]
    return length


def load_temperatures(path: str, steps: int) -> torch.Tensor:
    """Temperatures of an STS file, for ``calibrated``.

    Args:
        path: JSON as ``sglang.benchmark.dspark_sts_fit`` writes it.
        steps: positions of the longest chain; the file has to have one temperature each.

    Returns:
        FP32 ``[steps]`` on the CPU.

    Raises:
        ValueError: the file cannot be read, is no STS file, or was fit for another
            number of positions; the message names flag and file.
    """
    from sglang.srt.speculative.dspark_components.dspark_sts import (
        load_sts_calibration_from_path,
    )

    flag = TEMPERATURES_FLAG
    try:
        temperatures = load_sts_calibration_from_path(path).temperatures
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{flag}: cannot use {path}: {error}. It has to be a JSON file with "
            '{"temperatures": [...]}, one number above 0 for every drafted position.'
        ) from error
    if len(temperatures) != steps:
        raise ValueError(
            f"{flag}: {path} was fit for {len(temperatures)} drafted positions, and this "
            f"server drafts up to {steps}. Fit it again with as many steps, or leave "
            "the flag out."
        )
    positions = torch.tensor(temperatures, dtype=torch.float32)
    if not bool(((positions > 0) & positions.isfinite()).all()):
        raise ValueError(
            f"{flag}: {path} has temperatures that FP32 does not hold: {temperatures}."
        )
    return positions
