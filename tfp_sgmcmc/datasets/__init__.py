"""Data sets: digits that ship with the package, and MNIST.

`load_digits` needs no network. `load_mnist` reads a folder that TensorFlow
Datasets has prepared (`pip install 'tfp_sgmcmc[datasets]'`), or asks it to
download the data.
"""

from tfp_sgmcmc.datasets.digits import Digits
from tfp_sgmcmc.datasets.digits import load_digits
from tfp_sgmcmc.datasets.mnist import Mnist
from tfp_sgmcmc.datasets.mnist import load_mnist

__all__ = ['Digits', 'Mnist', 'load_digits', 'load_mnist']
