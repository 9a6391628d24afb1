"""Datasets, samplers, collation, and loading in this process."""

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lezero.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from lezero.data.randomness import batch_generator
from lezero.tensor import Tensor, tensor

Pair = namedtuple("Pair", "left right")


class Squares(Dataset):
    def __init__(self, n=10):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i * i


class Noise(Squares):
    def __getitem__(self, i):
        return float(i) + batch_generator().random()


class Count(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def values(loader):
    return [b.numpy().tolist() for b in loader]


def rng(seed=0):
    return np.random.default_rng(seed)


# -- datasets -------------------------------------------------------------------------------------------------


def test_tensor_dataset_gives_rows_and_gathers_the_same_rows():
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6)
    data = TensorDataset(tensor(x), y)
    row, label = data[4]
    assert row.numpy().tolist() == [8, 9] and label.item() == 4
    gathered = data.gather([5, 0])
    assert gathered[0].tolist() == [[10, 11], [0, 1]] and gathered[1].tolist() == [5, 0]


def test_tensor_dataset_refuses_different_lengths():
    with pytest.raises(ValueError, match=r"same first extent.*\(3,\), \(4,\)"):
        TensorDataset(np.zeros(3), np.zeros(4))


def test_subset_and_concat_reach_the_right_items():
    both = Squares(3) + Subset(Squares(10), [9, 7])
    assert [both[i] for i in range(len(both))] == [0, 1, 4, 81, 49]
    assert both[-1] == 49
    with pytest.raises(IndexError, match="out of range for 5 items"):
        both[5]
    assert isinstance(both, ConcatDataset)


@given(n=st.integers(0, 50), cuts=st.lists(st.integers(0, 50), max_size=3), seed=st.integers(0, 2**40))
@settings(max_examples=30)
def test_random_split_is_a_partition(n, cuts, seed):
    ends = [*sorted(min(c, n) for c in cuts), n]
    lengths = [b - a for a, b in zip([0, *ends], ends)]
    if sum(lengths) == 1:
        lengths = [*lengths, 0]
    parts = random_split(Squares(n), lengths, generator=rng(seed))
    if n != 1:
        assert [len(p) for p in parts] == lengths
    assert sorted(i for p in parts for i in p.indices) == list(range(n))


def test_random_split_by_fractions_and_wrong_lengths():
    assert [len(p) for p in random_split(Squares(11), [0.5, 0.3, 0.2])] == [6, 3, 2]
    with pytest.raises(ValueError, match="must add up to the dataset's 10 items"):
        random_split(Squares(10), [5, 6])


# -- samplers -------------------------------------------------------------------------------------------------

SAMPLERS = {
    "sequential": lambda: SequentialSampler(range(23)),
    "random": lambda: RandomSampler(range(23), generator=rng()),
    "replacement": lambda: RandomSampler(range(23), replacement=True, num_samples=40, generator=rng()),
    "longer": lambda: RandomSampler(range(5), num_samples=23, generator=rng()),
    "subset": lambda: SubsetRandomSampler([3, 1, 4, 15, 9, 2, 6], generator=rng()),
    "weighted": lambda: WeightedRandomSampler([1, 2, 0, 4], 30, generator=rng()),
    "batch": lambda: BatchSampler(RandomSampler(range(23), generator=rng()), 4),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_sampler_resumes_in_the_middle_and_then_goes_on_as_it_would_have(name, taken):
    original = SAMPLERS[name]()
    passes = iter(original)
    seen = [next(passes) for _ in range(taken)]
    state = original.state_dict()
    rest, following = list(passes), list(original)

    resumed = SAMPLERS[name]()
    resumed.load_state_dict(state)
    assert list(resumed) == rest
    assert list(resumed) == following
    assert len(original) == len(seen + rest)


def test_random_orders_are_permutations_and_differ_between_epochs():
    sampler = RandomSampler(range(50))
    first, second = list(sampler), list(sampler)
    assert sorted(first) == sorted(second) == list(range(50)) and first != second


def test_weights_are_respected_and_checked():
    drawn = list(WeightedRandomSampler([0, 1, 3], 4000, generator=rng()))
    assert drawn.count(0) == 0 and 2.5 < drawn.count(2) / drawn.count(1) < 3.5
    with pytest.raises(ValueError, match="not all zero"):
        WeightedRandomSampler([0, 0], 1)
    with pytest.raises(ValueError, match="only 2 weights are above zero"):
        WeightedRandomSampler([0, 1, 3], 3, replacement=False)


# -- collation ------------------------------------------------------------------------------------------------


def test_collation_keeps_structure_and_makes_tensors():
    item = {
        "x": np.ones((2, 3), np.float32),
        "y": (1, 2.5, True),
        "name": "a",
        "pair": Pair(tensor([1.0]), [np.int8(3)]),
    }
    batch = default_collate([item] * 4)
    assert batch["x"].shape == (4, 2, 3)
    assert [t.dtype.name for t in batch["y"]] == ["int64", "float32", "bool"]
    assert batch["name"] == ["a"] * 4
    assert isinstance(batch["pair"], Pair) and batch["pair"].left.shape == (4, 1)
    assert batch["pair"].right[0].dtype.name == "int8"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([np.zeros(2), np.zeros(3)], r"shapes \(2,\), \(3,\).*collate_fn"),
        ([{"a": 1}, {"b": 1}], "not the same keys"),
        ([{"a": (1, 2)}, {"a": (1,)}], r"item\['a'\] has lengths 1, 2"),
        ([1, "x"], "is a int in one and a str in another"),
        ([object()], "a object, which the default collation cannot stack"),
        ([np.array(["x"])], "no tensor can hold"),
    ],
)
def test_items_that_cannot_be_collated_say_where_and_why(items, message):
    with pytest.raises((TypeError, ValueError), match=message):
        default_collate(items)


def test_a_dataset_that_reuses_its_buffer_is_harmless():
    class Reuses(Squares):
        buffer = np.zeros(3, np.float32)

        def __getitem__(self, i):
            self.buffer[:] = i
            return self.buffer

    class Gathers(Reuses):
        def gather(self, indices):
            self.buffer[:] = indices
            return self.buffer

    for kind in (Reuses, Gathers):
        first, *_ = batches = list(DataLoader(kind(9), batch_size=3))
        assert first.numpy().max() == 2, kind
        assert batches[-1].numpy().max() == 8
    one, *_ = list(DataLoader(Reuses(3), batch_size=None))
    assert one.numpy().tolist() == [0, 0, 0]


# -- loading --------------------------------------------------------------------------------------------------


def test_batches_cover_the_dataset_in_order_or_shuffled():
    assert values(DataLoader(Squares(5), batch_size=2)) == [[0, 1], [4, 9], [16]]
    assert values(DataLoader(Squares(5), batch_size=2, drop_last=True)) == [[0, 1], [4, 9]]
    shuffled = [i for batch in values(DataLoader(Squares(40), batch_size=7, shuffle=True)) for i in batch]
    assert shuffled != sorted(shuffled) and sorted(shuffled) == [i * i for i in range(40)]


def test_lengths():
    assert len(DataLoader(Squares(5), batch_size=2)) == 3
    assert len(DataLoader(Squares(5), batch_size=2, drop_last=True)) == 2
    assert len(DataLoader(Squares(5), batch_size=None)) == 5
    assert len(DataLoader(Squares(5), batch_sampler=[[0], [1, 2]])) == 2
    with pytest.raises(TypeError):
        len(DataLoader(Count(5), batch_size=2))


def test_streams_are_batched():
    assert values(DataLoader(Count(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    assert values(DataLoader(Count(5), batch_size=2, drop_last=True)) == [[0, 1], [2, 3]]


def test_collate_fn_samplers_and_batch_samplers_of_the_users_own():
    assert list(DataLoader(Squares(4), batch_size=2, collate_fn=list)) == [[0, 1], [4, 9]]
    assert values(DataLoader(Squares(9), batch_size=2, sampler=[8, 1, 2])) == [[64, 1], [4]]
    assert values(DataLoader(Squares(9), batch_sampler=[[8], [1, 2]])) == [[64], [1, 4]]


def test_an_error_in_the_dataset_names_the_item():
    class Breaks(Squares):
        def __getitem__(self, i):
            return 1 // (3 - i)

    with pytest.raises(ZeroDivisionError) as caught:
        list(DataLoader(Breaks(), batch_size=2))
    assert "while loading item 3" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive"),
        ({"batch_size": 2.5}, "batch_size must be a positive"),
        ({"num_workers": -1}, "num_workers"),
        ({"shuffle": True, "sampler": [0]}, "leave shuffle out"),
        ({"batch_size": 3, "batch_sampler": [[0]]}, "leave them out"),
        ({"prefetch_factor": 2}, "need num_workers > 0"),
        ({"persistent_workers": True}, "need num_workers > 0"),
        ({"batch_size": None, "drop_last": True}, "drop_last needs a batch_size"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(Squares(), **options)


def test_what_is_no_dataset_is_refused():
    with pytest.raises(TypeError, match="int has no __getitem__"):
        DataLoader(3)
    with pytest.raises(ValueError, match="decides its own order"):
        DataLoader(Count(3), shuffle=True)


@pytest.mark.parametrize("taken", [0, 1, 3, 4])
@pytest.mark.parametrize("make", [Noise, Count])
def test_a_loader_resumes_in_the_middle_of_an_epoch(make, taken):
    def loader(seed):
        shuffle = make is Noise
        return DataLoader(make(10), batch_size=3, shuffle=shuffle, generator=rng(seed))

    original = loader(1)
    list(original)
    passes = iter(original)
    for _ in range(taken):
        next(passes)
    state = original.state_dict()
    rest, following = [b.numpy().tolist() for b in passes], values(original)

    resumed = loader(99)
    resumed.load_state_dict(state)
    assert values(resumed) == rest
    assert values(resumed) == following


def test_a_foreign_state_is_refused():
    with pytest.raises(ValueError, match="not a loader's state"):
        DataLoader(Squares()).load_state_dict({"epoch": 1})


def test_single_items_are_converted_but_not_stacked():
    loader = DataLoader([(np.float32(1), "a"), (np.float32(2), "b")], batch_size=None)
    first, second = list(loader)
    assert isinstance(first[0], Tensor) and first[0].item() == 1 and second[1] == "b"
