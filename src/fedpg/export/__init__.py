"""A trained policy without fedpg and without JAX: as a few lines of NumPy, or as ONNX."""

from fedpg.export.folder import FORMS, Form, export_policy, is_exported, load_exported, read_exported

__all__ = ["FORMS", "Form", "export_policy", "is_exported", "load_exported", "read_exported"]
