"""A rank that ends as its hyperparameter says."""

import json
import os
import runpy
import sys

sys.argv = ["failures.py", json.loads(os.environ["DTRAIN_HPARAMS"])["way"], "0"]
runpy.run_path("failures.py")
