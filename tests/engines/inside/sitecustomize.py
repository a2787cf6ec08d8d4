"""Imported by every process of a test's engine when it starts, from its PYTHONPATH.

vLLM's scheduler and workers wait for each other by calling sched_yield in a loop, for a second
after each message (SpinCondition in device_communicators/shm_broadcast.py, 0.32). Where they share
cores with threads that never sleep, Linux 6.18 lets whatever else wants to run wait: up to 16 s on
two cores beside NIXL's threads, which now wait as well (scripts/install_nixl.sh). So they sleep a
moment instead; tests with NIXL take three quarters of the time.
"""

import os
import time

WAIT_SECONDS = 0.0005

os.sched_yield = lambda: time.sleep(WAIT_SECONDS)
