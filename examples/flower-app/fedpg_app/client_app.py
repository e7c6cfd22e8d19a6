"""The sites' half."""

from fedpg.flower.client_app import app

__all__ = ["app"]
