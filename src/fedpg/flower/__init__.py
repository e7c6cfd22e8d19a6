"""A federation over the network, on Flower, which comes with the extra `flower`."""

import os

# Before Flower is imported: it reports its use and asks for newer versions unless it is told not to.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
