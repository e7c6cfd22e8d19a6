"""The paper's experiments: what they are, running what is missing, and the report from what is stored."""
