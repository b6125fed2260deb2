"""Data sets: small ones that ship with the package, loaders of others.

`load_digits` needs no network. Each other `load_...(data_dir=None, ...)` reads
the published format from a folder if it is given one; if not, it asks
TensorFlow Datasets (`pip install 'tfp_sgmcmc[datasets]'`) or the publisher, and
says so if it cannot be reached. Rows are counted, hashes checked where known.
"""

from tfp_sgmcmc.datasets.a9a import load_a9a
from tfp_sgmcmc.datasets.bag_of_words import BagOfWords
from tfp_sgmcmc.datasets.bag_of_words import load_bag_of_words
from tfp_sgmcmc.datasets.covertype import load_covertype
from tfp_sgmcmc.datasets.digits import Digits
from tfp_sgmcmc.datasets.digits import load_digits
from tfp_sgmcmc.datasets.mnist import Mnist
from tfp_sgmcmc.datasets.mnist import SmallMnist
from tfp_sgmcmc.datasets.mnist import load_mnist
from tfp_sgmcmc.datasets.mnist import load_small_mnist
from tfp_sgmcmc.datasets.mnist import shrink_mnist
from tfp_sgmcmc.datasets.preparation import Examples
from tfp_sgmcmc.datasets.preparation import Standardization
from tfp_sgmcmc.datasets.preparation import random_split
from tfp_sgmcmc.datasets.ratings import RatingData
from tfp_sgmcmc.datasets.ratings import Ratings
from tfp_sgmcmc.datasets.ratings import load_movielens
from tfp_sgmcmc.datasets.ratings import load_netflix
from tfp_sgmcmc.datasets.ratings import read_movielens
from tfp_sgmcmc.datasets.ratings import read_netflix
from tfp_sgmcmc.datasets.shards import RatingShards
from tfp_sgmcmc.datasets.shards import open_shards
from tfp_sgmcmc.datasets.shards import shard_ratings
from tfp_sgmcmc.datasets.uci_regression import load_uci_regression

__all__ = [
    'BagOfWords',
    'Digits',
    'Examples',
    'Mnist',
    'RatingData',
    'RatingShards',
    'Ratings',
    'SmallMnist',
    'Standardization',
    'load_a9a',
    'load_bag_of_words',
    'load_covertype',
    'load_digits',
    'load_mnist',
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
