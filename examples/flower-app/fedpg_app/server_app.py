"""The server's half."""

from fedpg.flower.server_app import app

__all__ = ["app"]
