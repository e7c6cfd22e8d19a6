"""Who answers a broadcast."""

from fedpg.federation.local import Local

__all__ = ["Local"]
