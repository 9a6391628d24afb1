"""Loading data: datasets, samplers and the DataLoader."""

from lezero.data import datasets, transforms
from lezero.data.collate import default_collate, default_convert
from lezero.data.dataset import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from lezero.data.loader import DataLoader
from lezero.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from lezero.data.worker_info import WorkerInfo, get_worker_info
from lezero.misspelt import suggest_names

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "datasets",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
    "transforms",
]

suggest_names(
    __name__,
    {
        "ChainDataset": "an IterableDataset whose __iter__ gives one after the other does it",
        "DistributedSampler": "training on several machines is not there yet",
        "StackDataset": "TensorDataset takes several arrays of one length",
    },
)
