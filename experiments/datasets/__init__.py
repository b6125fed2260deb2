"""Loaders of the data of experiments and benchmarks.

Each `load_...(data_dir=None, ...)` reads the published format from a folder if
it is given one. Without one it downloads the file of the publisher. Rows are
counted, and hashes checked where they are known.
"""

from experiments.datasets.a9a import load_a9a
from experiments.datasets.bag_of_words import BagOfWords
from experiments.datasets.bag_of_words import load_bag_of_words
from experiments.datasets.covertype import load_covertype
from experiments.datasets.preparation import Examples
from experiments.datasets.preparation import Standardization
from experiments.datasets.preparation import random_split
from experiments.datasets.ratings import RatingData
from experiments.datasets.ratings import Ratings
from experiments.datasets.ratings import load_movielens
from experiments.datasets.ratings import load_netflix
from experiments.datasets.ratings import read_movielens
from experiments.datasets.ratings import read_netflix
from experiments.datasets.shards import RatingShards
from experiments.datasets.shards import open_shards
from experiments.datasets.shards import shard_ratings
from experiments.datasets.small_mnist import SmallMnist
from experiments.datasets.small_mnist import load_small_mnist
from experiments.datasets.small_mnist import shrink_mnist
from experiments.datasets.uci_regression import load_uci_regression

__all__ = [
    'BagOfWords',
    'Examples',
    'RatingData',
    'RatingShards',
    'Ratings',
    'SmallMnist',
    'Standardization',
    'load_a9a',
    'load_bag_of_words',
    'load_covertype',
    'load_movielens',
    'load_netflix',
    'load_small_mnist',
    'load_uci_regression',
    'open_shards',
    'random_split',
    'read_movielens',
    'read_netflix',
    'shard_ratings',
    'shrink_mnist',
]
