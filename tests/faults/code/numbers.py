"""A rank without torch that logs numbered lines.

Arguments: number of lines, lines per second, bytes per line.
"""

import os
import sys
import time

COUNT, RATE, LENGTH = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
RUN = os.environ["DTRAIN_RUN"]
begun = time.monotonic()
for number in range(COUNT):
    line = f"NUM {RUN} {number} ".ljust(LENGTH, ".")
    if number % 10 == 0:
        os.write(1, line.encode())
        os.write(1, b" end\n")
    else:
        os.write(1, f"{line} end\n".encode())
    ahead_s = begun + (number + 1) / RATE - time.monotonic()
    if ahead_s > 0.01:
        time.sleep(ahead_s)
