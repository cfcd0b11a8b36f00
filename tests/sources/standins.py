"""Stand-ins for PyTorch, which is too large to install for tests: what `feeder` uses of it.

Checked by hand against the real one.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np


class Tensor:
    """A tensor on the CPU, over a NumPy array; bfloat16 as the upper halves of float32."""

    def __init__(self, data, dtype=None, requires_grad=False, layout="torch.strided"):
        self._data = np.asarray(data)
        self.dtype = dtype or f"torch.{self._data.dtype}"
        self.requires_grad = requires_grad
        self.layout = layout
        self.device = types.SimpleNamespace(type="cpu")
        self.conjugated = False

    @property
    def shape(self):
        return self._data.shape

    def __len__(self):
        return len(self._data)

    def __getitem__(self, index):
        return Tensor(self._data[index], self.dtype, self.requires_grad)

    def numpy(self):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        if self.layout != "torch.strided":
            raise TypeError("can't convert Sparse layout tensor to numpy. Use Tensor.to_dense()")
        if self.conjugated:
            raise RuntimeError("Can't call numpy() on Tensor that has conjugate bit set.")
        if self.dtype != f"torch.{self._data.dtype}":
            raise TypeError("Got unsupported ScalarType")
        return self._data

    def __array__(self, dtype=None, copy=None):
        return self.numpy()

    def clone(self):
        return Tensor(self._data.copy(), self.dtype, self.requires_grad)

    def is_conj(self):
        return self.conjugated

    def is_neg(self):
        return False

    def resolve_conj(self):
        return Tensor(self._data.conj())

    def resolve_neg(self):
        return self

    def view(self, dtype):
        return Tensor(self._data.view(dtype))

    def add_(self, value):
        self._data += value
        return self


Tensor.__module__ = "torch"


class Generator:
    """PyTorch's default generator."""

    def __init__(self):
        self._random = np.random.RandomState(67280421 % 2**32)

    def manual_seed(self, seed):
        self._random.seed(seed)

    def get_state(self):
        return Tensor(np.append(*(self._random.get_state()[place] for place in (1, 2))))

    def set_state(self, state):
        *key, at = state.numpy().tolist()
        self._random.set_state(("MT19937", key, at))

    def draw(self):
        return self._random.randint(2**31)


class Module(types.ModuleType):
    """The module ``torch``."""

    int16, uint8 = np.int16, np.uint8

    def __init__(self) -> None:
        super().__init__("torch")
        self.default_generator: Any = Generator()


class TensorDataset:
    """A map-style data set, whose records are rows of one tensor, with a number and a name."""

    def __init__(self, num_records):
        self._num_records = num_records

    def __len__(self):
        return self._num_records

    def __getitem__(self, index):
        row = np.arange(3, dtype=np.float32) + 3 * index
        return {"x": Tensor(row), "0d": Tensor(np.int64(index)), "name": f"number {index}"}
