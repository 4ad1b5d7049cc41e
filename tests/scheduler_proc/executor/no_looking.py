"""That the host never waits for a device."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoLooking(TorchDispatchMode):
    """Raises at what would make the host wait for a GPU: a value that is read on the host, a shape
    that depends on values."""

    LOOKS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "equal")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if any(name.startswith(look) for look in self.LOOKS):
            raise AssertionError(f"{func} looks at a value")
        if name in ("index", "index_put", "index_put_"):
            indices = [index for index in args[1] if index is not None]
            assert all(index.dtype != torch.bool for index in indices), "indices that are a mask"
        return func(*args, **(kwargs or {}))
