"""The arena: every attack against every defence, and what the worst case of each defence is."""
