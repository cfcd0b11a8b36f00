"""PyTorch's tensors, as NumPy arrays of the same memory; torch itself is never imported here.

Who holds a tensor has imported torch already, so its type can be told by name.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_tensor(value: object) -> bool:
    """Whether it is a `torch.Tensor`, or of a class derived from it."""
    kind: Any = type(value)
    return _is_tensor_type(kind)


@functools.lru_cache(256)
def _is_tensor_type(kind: type) -> bool:
    return any(base.__name__ == "Tensor" and base.__module__ == "torch" for base in kind.__mro__)


def as_numpy(tensor: Any) -> NDArray[Any]:
    """A tensor as an array; it is not copied, unless torch defers a conjugation or a sign of it.

    bfloat16 and the floats of 8 bits keep their dtype, by `ml_dtypes`, as in JAX.

    Raises:
        TypeError: It requires gradients, is not in the host's memory, is sparse or quantized.
    """
    try:
        array: NDArray[Any] = tensor.numpy()
    except (TypeError, RuntimeError) as error:
        return _rare(tensor, error)
    return array


def _rare(tensor: Any, error: Exception) -> NDArray[Any]:
    """What ``tensor.numpy()`` refuses, though some of it has an array all the same."""
    if tensor.requires_grad:
        raise TypeError(
            "a tensor in a record must not require gradients, got one of shape "
            f"{tuple(tensor.shape)} and dtype {tensor.dtype}; use its detach()"
        ) from None
    if tensor.is_conj() or tensor.is_neg():
        return as_numpy(tensor.resolve_conj().resolve_neg())
    import ml_dtypes

    scalar = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)
    if scalar is None or str(tensor.layout) != "torch.strided" or tensor.device.type != "cpu":
        raise TypeError(f"a tensor in a record must have a NumPy array: {error}") from error
    dtype = np.dtype(scalar)
    torch: Any = sys.modules["torch"]
    bits = tensor.view({1: torch.uint8, 2: torch.int16}[dtype.itemsize])
    viewed: NDArray[Any] = bits.numpy().view(dtype)
    return viewed
