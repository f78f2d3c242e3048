"""Register a Python function as an op of the torch namespace `sgl_kernel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

NAMESPACE = "sgl_kernel"
# A fragment, so that another module may define further ops of the namespace.
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def cpu_op(mutates: Sequence[str] = ()) -> Callable[[Callable], Callable]:
    """Decorator: `torch.ops.sgl_kernel.<function name>` calls the function on CPU.

    The schema comes from the annotations, which must therefore be real types
    (`Optional[torch.Tensor]`, not a string). `mutates` names the arguments that the
    op writes.
    """

    def register(function: Callable) -> Callable:
        schema = torch.library.infer_schema(function, mutates_args=tuple(mutates))
        _library.define(function.__name__ + schema)
        _library.impl(function.__name__, function, "CPU")
        return function

    return register
