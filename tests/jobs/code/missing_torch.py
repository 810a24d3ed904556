"""A script that imports torch. It must not start on a host without torch."""

import torch

print(torch.__version__)
