"""A script that imports torch; it is never reached on a host that has none."""

import torch

print(torch.__version__)
