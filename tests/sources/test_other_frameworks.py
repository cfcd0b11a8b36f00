"""Data sets of PyTorch's and Grain's protocols, with stand-ins for their classes."""

import sys

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

import feeder
from feeder import tensors
from feeder.sources import ArraySource, as_source
from tests.sources.standins import Module, Tensor, TensorDataset
from tests.support import digest, run

WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "thread"}]


def test_a_tensor_becomes_an_array_of_the_same_memory():
    tensor = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    array = tensors.as_numpy(tensor)
    assert np.shares_memory(array, tensor.numpy())


def test_classes_derived_from_a_tensor_are_tensors_and_others_are_not():
    class Image(Tensor):
        pass

    assert tensors.is_tensor(Image(np.zeros(2)))
    assert not tensors.is_tensor(np.zeros(2))
    assert not tensors.is_tensor(type("Tensor", (), {})())


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_floats_that_numpy_lacks_keep_their_dtype(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Module())
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.array([[1, -2], [0.5, 4]]).astype(dtype)
    records = [{"x": Tensor(row.view(f"u{dtype.itemsize}"), f"torch.{name}")} for row in values]
    (batch,) = run(records, 2)
    assert batch["x"].dtype == dtype
    assert (batch["x"] == values).all()


def test_what_torch_defers_is_resolved():
    tensor = Tensor(np.array([1 + 2j]))
    tensor.conjugated = True
    assert tensors.as_numpy(tensor) == np.array([1 - 2j])


def test_a_tensor_that_requires_gradients_is_refused():
    with pytest.raises(TypeError) as caught:
        run([{"x": Tensor(np.zeros(3), requires_grad=True)}], 1)
    assert str(caught.value) == (
        "a tensor in a record must not require gradients, got one of shape (3,) and dtype "
        "torch.float64; use its detach()"
    )
    assert caught.value.__cause__.index == 0


def test_a_tensor_without_an_array_is_refused_with_torchs_reason():
    with pytest.raises(TypeError) as caught:
        run([Tensor(np.zeros(3), layout="torch.sparse_coo")], 1)
    assert str(caught.value) == (
        "a tensor in a record must have a NumPy array: can't convert Sparse layout tensor to "
        "numpy. Use Tensor.to_dense()"
    )


def test_records_of_tensors_are_stacked_whoever_reads_them():
    for options in WORKERS:
        batches = run(TensorDataset(20), 8, last_batch="keep", **options)
        assert np.concatenate([batch["x"] for batch in batches]).tolist() == [
            [3 * i, 3 * i + 1, 3 * i + 2] for i in range(20)
        ]
        assert batches[2]["0d"].dtype == np.int64
        assert batches[2]["0d"].tolist() == [16, 17, 18, 19]
        assert batches[2]["name"][-1] == "number 19"


def test_tensors_of_other_shapes_or_dtypes_are_mismatches():
    for other in (Tensor(np.zeros(4)), Tensor(np.zeros(3, np.float32)), 5):
        with pytest.raises(feeder.RecordMismatchError):
            run([Tensor(np.zeros(3)), other], 2)


def test_a_transform_that_changes_a_tensor_in_place_changes_no_source():
    source = [Tensor(np.zeros(3)), Tensor(np.ones(3))]
    first, second = run(source, 2, transforms=[lambda tensor: tensor.add_(5)], num_epochs=2)
    assert (first == second).all()
    assert (source[0].numpy() == 0).all()


def test_a_tensor_and_a_pytree_of_them_are_sources_of_their_rows():
    rows = np.arange(12.0).reshape(6, 2)
    for source, leaf in ((Tensor(rows), 0), ({"x": Tensor(rows)}, "x"), ((Tensor(rows),), 0)):
        found = as_source(source)
        assert isinstance(found, ArraySource)
        (batch,) = run(source, 6)
        batch = batch if isinstance(batch, np.ndarray) else batch[leaf]
        assert (batch == rows).all()
        assert np.shares_memory(found.arrays[0], rows)


def test_a_stream_of_tensors_is_stacked():
    class IterableDataset:
        """As PyTorch's: `[]` is there, and only raises."""

        def __iter__(self):
            return iter([Tensor(np.full(3, i)) for i in range(10)])

        def __getitem__(self, index):
            raise NotImplementedError

        def __len__(self):
            return 10

    for options in WORKERS:
        batches = run(IterableDataset(), 4, last_batch="keep", **options)
        assert np.concatenate(batches)[:, 0].tolist() == list(range(10))


def test_images_of_pillow_become_arrays_of_their_pixels():
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    source = [(Image.fromarray(pixels), 0), (Image.fromarray(pixels + 1), 1)]
    images, labels = run(source, 2)[0]
    assert images.dtype == np.uint8
    assert (images == [pixels, pixels + 1]).all()
    assert labels.tolist() == [0, 1]


def test_a_class_may_say_that_it_reads_no_lists():
    class Dataset(list):
        __getitems__ = None

    assert run(Dataset([1, 2]), 2)[0].tolist() == [1, 2]


class Filtered:
    """As a MapDataset of Grain's after filter(): None in the place of what is left out."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return None if index % 2 else {"x": np.int64(index)}


def test_a_source_that_gives_none_is_an_error_that_names_the_record():
    with pytest.raises(TypeError) as caught:
        run(Filtered(), 4)
    assert str(caught.value) == (
        "`source[1]` must be a record, got None; does its __getitem__ end without a return? What "
        "a MapDataset of Grain's has filtered, `on_bad_record` passes over"
    )


def test_what_a_filter_of_grains_leaves_out_can_be_skipped():
    batches = run(Filtered(), 4, on_bad_record="skip")
    assert [batch["x"].tolist() for batch in batches] == [[0, 2], [4, 6]]


class IterDataset:
    """As Grain's: an iterable whose iterators have get_state() and set_state()."""

    def __iter__(self):
        return DatasetIterator()


class DatasetIterator:
    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 24:
            raise StopIteration
        self.at += 1
        return {"x": np.int64(self.at - 1)}

    def get_state(self):
        return {"next_index": self.at}

    def set_state(self, state):
        self.at = state["next_index"]


def test_an_iter_dataset_goes_on_from_its_iterators_state():
    with feeder.DataLoader(IterDataset(), 4, num_workers=1) as loader:
        with iter(loader) as batches:
            for _ in range(3):
                next(batches)
            saved = batches.get_state()
        with iter(loader) as batches:
            batches.set_state(saved)  # a warning, so an error, where it is read again
            assert next(batches)["x"].tolist() == [12, 13, 14, 15]


class Drawing:
    """Augments by PyTorch's default generator, and brings PyTorch with it when it is unpickled."""

    def __init__(self, every=1):
        self.every = every

    def __setstate__(self, state):
        sys.modules["torch"] = Module()
        self.__dict__.update(state)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = sys.modules["torch"].default_generator
        return np.int64(generator.draw() if index % self.every == self.every - 1 else 0)


@pytest.mark.parametrize("every", [1, 7])
def test_draws_from_pytorchs_default_generator_are_keyed(every, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Module())
    expected = run(Drawing(every), 4, seed=5, num_epochs=2)
    drawn = np.concatenate(expected)
    assert len(set(drawn[drawn > 0].tolist())) == 2 * (24 // every)
    assert digest(run(Drawing(every), 4, seed=5, num_epochs=2, num_workers=2)) == digest(expected)
    assert digest(run(Drawing(every), 4, seed=6, num_epochs=2)) != digest(expected)


def test_the_users_own_generator_of_pytorchs_goes_on_as_if_nothing_had_drawn(monkeypatch):
    module = Module()
    monkeypatch.setitem(sys.modules, "torch", module)
    module.default_generator.manual_seed(1)
    expected = module.default_generator.draw()
    module.default_generator.manual_seed(1)
    run(Drawing(), 4)
    assert module.default_generator.draw() == expected


def test_a_transform_that_imports_torch_draws_the_same(monkeypatch):
    def lazily(index):
        module = sys.modules.setdefault("torch", Module())
        return np.int64(module.default_generator.draw())

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    first = digest(run(list(range(12)), 4, transforms=[lazily]))
    assert digest(run(list(range(12)), 4, transforms=[lazily])) == first
    del sys.modules["torch"]
