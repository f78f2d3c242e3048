"""The packed draft words in SGLang's inventory of kernels."""

import unittest

from sglang.kernels.ops import speculative  # noqa: F401  (registers the kernels)
from sglang.kernels.ops.speculative import shard_winner as module
from sglang.kernels.registry import registry
from sglang.kernels.spec import KernelBackend
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestRegistered(CustomTestCase):
    def test_both_kernels_load_from_the_inventory(self):
        # Red if a kernel is not registered, or its target names another function.
        for name in ("shard_winner", "merge_shard_winners"):
            spec = registry.get_backend(f"speculative.{name}", KernelBackend.TRITON)
            with self.subTest(name=name):
                self.assertIs(spec.load(), getattr(module, name))


if __name__ == "__main__":
    unittest.main()
