"""Who answers a broadcast."""

from fedpg.federation.local import local_federation

__all__ = ["local_federation"]
