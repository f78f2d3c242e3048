"""Probability of drafted tokens, and what follows from it for a chain."""

import decimal
import json
import math
import tempfile
import unittest
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sglang.srt.speculative.draft_confidence import (
    TEMPERATURES_FLAG,
    calibrated,
    chain_survival,
    expected_accept_length,
    load_temperatures,
    probability_logit,
    selected_probability,
)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

FP32_STEP = 2.0**-23
INF, NAN = math.inf, math.nan


def some_probabilities(rows: int, steps: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(8)
    return torch.rand((rows, steps), generator=generator)


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.int32)


def exactly(probability: float, temperature: float) -> float:
    """``sigmoid(logit(p) / T)`` with forty digits, rounded once."""
    with decimal.localcontext(decimal.Context(prec=40)):
        p = decimal.Decimal(probability)
        odds = ((1 - p).ln() - p.ln()) / decimal.Decimal(temperature)
        return float(1 / (1 + odds.exp()))


class TestSelectedProbability(CustomTestCase):
    def test_against_a_softmax_in_fp64(self):
        """Red when it is not the softmax: another base, or a normalised logit."""
        generator = torch.Generator().manual_seed(1)
        for scale in (0.1, 1.0, 30.0):
            logits = torch.randn((64, 4099), generator=generator) * scale
            wanted = logits.double().softmax(-1).amax(-1)
            logsumexp = logits.double().logsumexp(-1).float()
            got = selected_probability(logits.amax(-1), logsumexp).double()
            tolerance = 2e-5 + FP32_STEP * logsumexp.abs().double()
            self.assertTrue(bool(((got - wanted).abs() <= tolerance).all()))

    def test_no_nan_goes_on(self):
        """Red when a NaN or an infinity of the log-sum-exp reaches a decision."""
        logits = torch.tensor([1.0, INF, -INF, NAN, -INF, 3.0, 0.0])
        logsumexp = torch.tensor([NAN, INF, -INF, NAN, 2.0, 2.9999998, 0.0])
        got = selected_probability(logits, logsumexp).tolist()
        self.assertEqual(got, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0])


class TestCalibrated(CustomTestCase):
    def test_a_temperature_of_one_keeps_the_bits(self):
        """Red when identity is computed: a file of ones would change decisions."""
        edge = torch.tensor([[0.0, 1.0, 1e-30, 1.0 - 2.0**-24, 0.1]])
        probability = torch.cat([edge, some_probabilities(200, 5)])
        got = calibrated(probability, torch.ones(5))
        self.assertTrue(torch.equal(bits(got), bits(probability)))

    def test_against_fp64(self):
        """Red when positions share a temperature, or it multiplies."""
        probability = some_probabilities(300, 3).clamp(1e-6, 1 - 1e-6)
        temperatures = torch.tensor([0.5, 2.0, 7.0])
        wanted = torch.sigmoid(probability.double().logit() / temperatures.double())
        got = calibrated(probability, temperatures).double()
        self.assertLess((got - wanted).abs().max().item(), 2e-6)

    def test_correctly_rounded(self):
        """Red when a last bit depends on a library or on the host's vector units: FP64
        is close enough to the exact value that there is one FP32 number to round to."""
        probability = torch.cat(
            [
                torch.tensor([[1e-30, 1.0 - 2.0**-24, 2.0**-126, 0.5, 1e-3]]),
                some_probabilities(100, 5),
            ]
        )
        temperatures = torch.tensor([0.3, 2.0, 0.7, 9.0, 1.25])
        got = calibrated(probability, temperatures)
        wanted = [
            [exactly(*pair) for pair in zip(row, temperatures.tolist())]
            for row in probability.tolist()
        ]
        self.assertTrue(torch.equal(bits(got), bits(torch.tensor(wanted))))

    def test_operations_that_ieee_754_rounds(self):
        """Red when an operation is taken whose last bit is a library's choice."""
        seen = set()

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.add(function.overloadpacket.__name__.strip("_"))
                return function(*args, **(kwargs or {}))

        probability, temperatures = some_probabilities(4, 2), torch.tensor([0.5, 2.0])
        with Recorder():
            calibrated(probability, temperatures)
        arithmetic = {"add", "sub", "mul", "div", "reciprocal", "neg", "rsub"}
        exact = {"frexp", "round", "clamp", "lt", "eq", "where", "bitwise_or"}
        shapes = {
            "slice",
            "view",
            "full_like",
            "to_copy",
            "lshift",
            "detach",
        }
        self.assertEqual(seen - arithmetic - exact - shapes, set())

    def test_the_ends(self):
        """Red when 0 becomes likely or 1 gives an infinite logit to a fit."""
        ends = torch.tensor([[0.0], [1.0]])
        zero, one = calibrated(ends, torch.tensor([4.0]))[:, 0].tolist()
        self.assertEqual(zero, 0.0)
        self.assertAlmostEqual(one, 1 / (1 + math.exp(-16.635532 / 4)), places=5)
        logits = probability_logit(ends)
        self.assertTrue(bool(logits.isfinite().all()))
        self.assertLess(logits[0].item(), -80)

    def test_a_row_does_not_depend_on_its_place(self):
        """Red when an operation is used whose last bit depends on the place in memory."""
        probability = some_probabilities(257, 3)
        temperatures = torch.tensor([0.7, 1.3, 2.0])
        whole = calibrated(probability, temperatures)
        alone = torch.cat([calibrated(row[None], temperatures) for row in probability])
        self.assertTrue(torch.equal(bits(whole), bits(alone)))

    def test_too_few_temperatures(self):
        """Red when positions without a temperature go through."""
        with self.assertRaisesRegex(ValueError, "2 temperatures for 3 positions"):
            calibrated(torch.ones(1, 3), torch.ones(2))
        # A shorter chain (adaptive steps) takes the first ones.
        shorter = calibrated(torch.tensor([[0.5]]), torch.tensor([1.0, 9.0]))
        self.assertEqual(shorter.tolist(), [[0.5]])


class TestChain(CustomTestCase):
    def test_survival_and_expected_length_against_fp64(self):
        """Red when a factor is left out, or the bonus token is not counted."""
        probability = some_probabilities(100, 7)
        survival = chain_survival(probability)
        wanted = probability.double().cumprod(-1)
        self.assertLess((survival.double() - wanted).abs().max().item(), 1e-6)
        length = expected_accept_length(survival).double()
        self.assertLess((length - 1 - wanted.sum(-1)).abs().max().item(), 2e-6)

    def test_the_order_is_from_the_left(self):
        """Red when a scan or a pairwise sum is used: bits would depend on the device."""
        probability = some_probabilities(50, 9)
        survival, product, total = [], torch.ones(50), torch.ones(50)
        for column in probability.unbind(-1):
            product = product * column
            total = total + product
            survival.append(product)
        got = chain_survival(probability)
        self.assertTrue(torch.equal(bits(got), bits(torch.stack(survival, -1))))
        self.assertTrue(torch.equal(bits(expected_accept_length(got)), bits(total)))

    def test_no_rows_and_no_steps(self):
        """Red when an idle batch or zero steps fail."""
        for shape in ((0, 3), (2, 0), (0, 0)):
            survival = chain_survival(torch.ones(shape))
            self.assertEqual(survival.shape, shape)
            wanted = [1.0] * shape[0]
            self.assertEqual(expected_accept_length(survival).tolist(), wanted)

    def test_the_input_is_left_alone(self):
        """Red when the product is taken in place: the probabilities are reported, too."""
        probability = some_probabilities(4, 3)
        before = probability.clone()
        expected_accept_length(chain_survival(probability))
        self.assertTrue(torch.equal(probability, before))


class TestTemperatureFile(CustomTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(Path(folder.name) / "temperatures.json")

    def write(self, content) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        Path(self.path).write_text(text)

    def test_a_file_of_the_fit(self):
        """Red when the format is no longer SGLang's STS format."""
        self.write({"temperatures": [0.5, 2.0], "dataset": "some", "num_samples": 3})
        loaded = load_temperatures(self.path, 2)
        self.assertEqual(loaded.tolist(), [0.5, 2.0])
        self.assertEqual(loaded.dtype, torch.float32)

    def test_a_file_that_cannot_be_used_is_one_clear_error(self):
        """Red when a bad file is taken, or the error lacks the flag, file or cause."""
        bad = {
            "truncated": "{",
            "temperatures": {"values": [1.0]},
            "must all be > 0": {"temperatures": [1.0, 0.0]},
            "at least one": {"temperatures": []},
            "Expected `float`": {"temperatures": ["a", 1.0]},
            "FP32": {"temperatures": [1.0, 1e-60]},
            "fit for 3 drafted positions, and this server drafts up to 2": {
                "temperatures": [1.0] * 3
            },
        }
        for cause, content in bad.items():
            self.write(content)
            with self.subTest(cause=cause), self.assertRaises(ValueError) as caught:
                load_temperatures(self.path, 2)
            for part in (TEMPERATURES_FLAG, self.path, cause):
                self.assertIn(part, str(caught.exception))

    def test_a_missing_file(self):
        """Red when a wrong path ends in a bare OSError."""
        with self.assertRaisesRegex(ValueError, f"{TEMPERATURES_FLAG}: .*No such file"):
            load_temperatures(self.path, 2)


if __name__ == "__main__":
    unittest.main()
